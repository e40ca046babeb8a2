"""What becomes of a client that several subsets of one round have drawn.

Each strategy maps (train, clients, subsets [M, K]) to what the slots trained, stacked over [M, K], and the clients'
new states. `train(clients, ids, subset)` trains the clients `ids` [n] from their states, for the subsets [n].
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rscfed_jax.clients import NOBODY
from rscfed_jax.local.objective import Losses
from rscfed_jax.local.training import ClientState
from rscfed_jax.types import Array, Model


class Trained(NamedTuple):
    """What a slot sends to the server, and what its client keeps."""

    model: Model
    client: ClientState
    losses: Losses
    healthy: Array  # bool: the model is finite


Train = Callable[[ClientState, Array, Array], Trained]
Repeat = Callable[[Train, ClientState, Array], tuple[Trained, ClientState]]


def retrain(train: Train, clients: ClientState, subsets: Array) -> tuple[Trained, ClientState]:
    """Once for each subset, all at once and from the same state; the state of the last slot is kept."""
    subset = jnp.repeat(jnp.arange(subsets.shape[0]), subsets.shape[1])
    trained = train(clients, subsets.ravel(), subset)
    clients = write_back(clients, subsets.ravel(), trained.client)
    return jax.tree.map(lambda leaf: leaf.reshape(*subsets.shape, *leaf.shape[1:]), trained), clients


def sequential(train: Train, clients: ClientState, subsets: Array) -> tuple[Trained, ClientState]:
    """Once for each subset, one subset after the other: the client's state moves on in between."""

    def one_subset(clients: ClientState, slot: tuple[Array, Array]) -> tuple[ClientState, Trained]:
        number, ids = slot
        trained = train(clients, ids, jnp.full_like(ids, number))
        return write_back(clients, ids, trained.client), trained

    clients, trained = jax.lax.scan(one_subset, clients, (jnp.arange(subsets.shape[0]), subsets))
    return trained, clients


def share(train: Train, clients: ClientState, subsets: Array) -> tuple[Trained, ClientState]:
    """Once a round: the model serves every subset that drew the client."""
    count = min(clients.step.shape[0], subsets.size)
    ids = jnp.unique(subsets, size=count, fill_value=NOBODY)
    trained = train(clients, ids, jnp.zeros_like(ids))
    clients = write_back(clients, ids, trained.client)
    place = jnp.searchsorted(ids, subsets)
    return jax.tree.map(lambda leaf: leaf[place], trained), clients


def write_back(clients: ClientState, ids: Array, states: ClientState) -> ClientState:
    """Stores the states [n, ...] of the clients `ids` [n]; of a client named twice, the state of its last slot.

    A scatter with duplicate indices has no defined order, so all slots but the last go to an index out of range.
    """
    number = clients.step.shape[0]
    slots = jnp.arange(len(ids))
    last = jnp.full(number, -1).at[ids].max(slots, mode="drop")
    target = jnp.where(last.at[ids].get(mode="fill", fill_value=-1) == slots, ids, number)
    return jax.tree.map(lambda old, new: old.at[target].set(new, mode="drop"), clients, states)


REPEATS: dict[str, Repeat] = {"retrain": retrain, "sequential": sequential, "share": share}
