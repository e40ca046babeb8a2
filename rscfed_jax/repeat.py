"""What becomes of a client that several subsets of one round have drawn.

Each strategy maps (train, clients, subsets [M, K]) to what the slots trained, stacked over [M, K], and the clients'
new states. `train(clients, ids, subset)` does the same for the clients `ids` [n] and the subsets [n] they train for.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from rscfed_jax.clients import NOBODY
from rscfed_jax.local.objective import Losses
from rscfed_jax.local.training import ClientState
from rscfed_jax.types import Array, Model


class Trained(NamedTuple):
    """What a slot sends to the server."""

    model: Model
    losses: Losses
    news: Any  # what the method's objective tells the server; None for most
    healthy: Array  # bool: the client answered with a finite model
    answered: Array  # bool


class Train(Protocol):
    """Trains clients `ids` [n] for the subsets `subset` [n]; `distinct` promises that no client is named twice."""

    def __call__(
        self, clients: ClientState, ids: Array, subset: Array, *, distinct: bool
    ) -> tuple[Trained, ClientState]:
        """What the slots trained [n, ...], and the clients' new states."""


Repeat = Callable[[Train, ClientState, Array], tuple[Trained, ClientState]]


def retrain(train: Train, clients: ClientState, subsets: Array) -> tuple[Trained, ClientState]:
    """Once for each subset, all at once and from the same state; the state of the last slot is kept."""
    number, size = subsets.shape
    subset = jnp.repeat(jnp.arange(number), size)
    trained, clients = train(clients, subsets.ravel(), subset, distinct=number == 1)
    return jax.tree.map(lambda leaf: leaf.reshape(number, size, *leaf.shape[1:]), trained), clients


def sequential(train: Train, clients: ClientState, subsets: Array) -> tuple[Trained, ClientState]:
    """Once for each subset, one subset after the other: the client's state moves on in between."""

    def one_subset(clients: ClientState, slot: tuple[Array, Array]) -> tuple[ClientState, Trained]:
        number, ids = slot
        trained, clients = train(clients, ids, jnp.full_like(ids, number), distinct=True)
        return clients, trained

    clients, trained = jax.lax.scan(one_subset, clients, (jnp.arange(subsets.shape[0]), subsets))
    return trained, clients


def share(train: Train, clients: ClientState, subsets: Array) -> tuple[Trained, ClientState]:
    """Once a round: the model serves every subset that drew the client."""
    count = min(clients.step.shape[0], subsets.size)
    ids = jnp.unique(subsets, size=count, fill_value=NOBODY)
    trained, clients = train(clients, ids, jnp.zeros_like(ids), distinct=True)
    place = jnp.searchsorted(ids, subsets)
    return jax.tree.map(lambda leaf: leaf[place], trained), clients


REPEATS: dict[str, Repeat] = {"retrain": retrain, "sequential": sequential, "share": share}
