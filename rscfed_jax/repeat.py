"""What becomes of a client that several subsets of one round have drawn.

Each strategy maps (train, clients, subsets [M, K], number of clients N) to what the slots trained, stacked over [M, K],
and the clients' new states. `train(clients, ids, subset)` does the same for the clients `ids` [n] and the subsets [n]
they train for. Where clients keep no state, None stands for it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from rscfed_jax.local.objective import Losses
from rscfed_jax.local.training import ClientState
from rscfed_jax.schedule import NOBODY
from rscfed_jax.types import Array, Model


class Trained(NamedTuple):
    """What a slot sends to the server."""

    model: Model
    losses: Losses
    news: Any  # what the method's objective tells the server; None for most
    healthy: Array  # bool: the client answered with a finite model
    answered: Array  # bool


class Train(Protocol):
    """Trains clients `ids` [n] for the subsets `subset` [n]."""

    def __call__(self, clients: ClientState | None, ids: Array, subset: Array) -> tuple[Trained, ClientState | None]:
        """What the slots trained [n, ...], and the clients' new states."""


Repeat = Callable[[Train, ClientState | None, Array, int], tuple[Trained, ClientState | None]]


def retrain(
    train: Train, clients: ClientState | None, subsets: Array, population: int
) -> tuple[Trained, ClientState | None]:
    """Once for each subset, all at once and from the same state; the state of the last slot is kept."""
    del population
    number, size = subsets.shape
    subset = jnp.repeat(jnp.arange(number), size)
    trained, clients = train(clients, subsets.ravel(), subset)
    return jax.tree.map(lambda leaf: leaf.reshape(number, size, *leaf.shape[1:]), trained), clients


def sequential(
    train: Train, clients: ClientState | None, subsets: Array, population: int
) -> tuple[Trained, ClientState | None]:
    """Once for each subset, one subset after the other: the client's state moves on in between."""
    del population

    def one_subset(clients: ClientState | None, slot: tuple[Array, Array]) -> tuple[ClientState | None, Trained]:
        number, ids = slot
        trained, clients = train(clients, ids, jnp.full_like(ids, number))
        return clients, trained

    clients, trained = jax.lax.scan(one_subset, clients, (jnp.arange(subsets.shape[0]), subsets))
    return trained, clients


def share(
    train: Train, clients: ClientState | None, subsets: Array, population: int
) -> tuple[Trained, ClientState | None]:
    """Once a round: the model serves every subset that drew the client."""
    count = min(population, subsets.size)
    ids = jnp.unique(subsets, size=count, fill_value=NOBODY)
    trained, clients = train(clients, ids, jnp.zeros_like(ids))
    place = jnp.searchsorted(ids, subsets)
    return jax.tree.map(lambda leaf: leaf[place], trained), clients


REPEATS: dict[str, Repeat] = {"retrain": retrain, "sequential": sequential, "share": share}
