"""Who takes part in a round: samplers are small static objects that map a key to [M, K] client ids.

`slots` tells without drawing how often each client takes part on average: plans and time estimates ask it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rscfed_jax.config import Config, SettingError
from rscfed_jax.core.types import Array, FederatedData


@dataclass(frozen=True)
class RandomSubsets:
    """M subsets, drawn independently, each of K of the N clients without replacement."""

    subsets: int
    subset_size: int

    def __call__(self, key: Array, data: FederatedData) -> Array:
        """[M, K] client ids."""
        if self.subset_size > data.clients:
            raise SettingError("subset_size", self.subset_size, f"must be from 1 to --clients {data.clients}")

        def draw(subset: Array) -> Array:
            # Sorting one draw per client instead of permuting ids: a client's luck then depends on its id alone.
            luck = jax.random.uniform(jax.random.fold_in(key, subset), (data.clients,), jnp.float32)
            return jnp.argsort(luck)[: self.subset_size].astype(jnp.int32)

        return jax.vmap(draw)(jnp.arange(self.subsets))

    def slots(self, labeled: np.ndarray) -> np.ndarray:
        """[N] how often each client is drawn in a round, on average; `labeled` [N] says who holds labels."""
        return np.full(len(labeled), self.subsets * self.subset_size / len(labeled))


@dataclass(frozen=True)
class AllClients:
    """One subset of all clients, every round."""

    def __call__(self, key: Array, data: FederatedData) -> Array:
        """[1, N] client ids."""
        del key
        return jnp.arange(data.clients, dtype=jnp.int32)[None]

    def slots(self, labeled: np.ndarray) -> np.ndarray:
        """[N] ones."""
        return np.ones(len(labeled))


@dataclass(frozen=True)
class LabeledClients:
    """One subset of the clients that hold labels, every round."""

    def __call__(self, key: Array, data: FederatedData) -> Array:
        """[1, labeled] client ids."""
        del key
        return data.labeled_ids[None]

    def slots(self, labeled: np.ndarray) -> np.ndarray:
        """[N] one for a client that holds labels."""
        return labeled.astype(float)


@dataclass(frozen=True)
class UnlabeledClients:
    """One subset of the clients that hold samples without a label, every round."""

    def __call__(self, key: Array, data: FederatedData) -> Array:
        """[1, unlabeled] client ids."""
        del key
        return data.unlabeled_ids[None]

    def slots(self, labeled: np.ndarray) -> np.ndarray:
        """[N] one for a client that holds no labels, or all of them if each holds some."""
        return np.ones(len(labeled)) if labeled.all() else 1.0 - labeled


# What a method's file calls SAMPLES.
SAMPLERS: dict[str, Callable[[Config], Any]] = {
    "subsets": lambda config: RandomSubsets(config.subsets, config.subset_size),
    "all": lambda config: AllClients(),
    "labeled": lambda config: LabeledClients(),
    "unlabeled": lambda config: UnlabeledClients(),
}
