"""What happens to a client that several subsets of a round draw.

Each strategy maps subsets [M, K] of rows and the number of rows to the work of the round, in passes: the slots of a
pass run at once, and a client's state moves on from pass to pass.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from rscfed_jax.core.schedule import NOBODY
from rscfed_jax.core.types import Array


class Passes(NamedTuple):
    """The slots of a round, as W passes of n."""

    rows: Array  # [W, n]; NOBODY pads the work
    subsets: Array  # [W, n] the subset that each slot trains for
    places: Array | None = None  # [M, K] which of the W * n slots serves each member; None: they are its M * K


Repeat = Callable[[Array, int], Passes]


def retrain(subsets: Array, population: int) -> Passes:
    """Once for each subset, all at once and from the same state; the state of the last slot is kept."""
    del population
    number, size = subsets.shape
    return Passes(subsets.reshape(1, -1), jnp.repeat(jnp.arange(number), size)[None])


def sequential(subsets: Array, population: int) -> Passes:
    """Once for each subset, one subset after the other: the client's state moves on in between."""
    del population
    return Passes(subsets, jnp.broadcast_to(jnp.arange(subsets.shape[0])[:, None], subsets.shape))


def share(subsets: Array, population: int) -> Passes:
    """Once a round: the model serves every subset that drew the client."""
    rows = jnp.unique(subsets, size=min(population, subsets.size), fill_value=NOBODY)
    return Passes(rows[None], jnp.zeros_like(rows)[None], jnp.searchsorted(rows, subsets))


REPEATS: dict[str, Repeat] = {"retrain": retrain, "sequential": sequential, "share": share}
