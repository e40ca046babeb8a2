"""Who takes part in a round: samplers are small static objects that map a key to [M, K] client ids."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from rscfed_jax.data.table import FederatedData
from rscfed_jax.types import Array


@dataclass(frozen=True)
class RandomSubsets:
    """M subsets, drawn independently, each of K of the N clients without replacement."""

    subsets: int
    subset_size: int

    def __call__(self, key: Array, data: FederatedData) -> Array:
        """[M, K] client ids."""

        def draw(subset: Array) -> Array:
            # Sorting one draw per client instead of permuting ids: a client's luck then depends on its id alone.
            luck = jax.random.uniform(jax.random.fold_in(key, subset), (data.clients,), jnp.float32)
            return jnp.argsort(luck)[: self.subset_size].astype(jnp.int32)

        return jax.vmap(draw)(jnp.arange(self.subsets))


@dataclass(frozen=True)
class AllClients:
    """One subset of all clients, every round."""

    def __call__(self, key: Array, data: FederatedData) -> Array:
        """[1, N] client ids."""
        del key
        return jnp.arange(data.clients, dtype=jnp.int32)[None]


@dataclass(frozen=True)
class LabeledClients:
    """One subset of the clients that hold labels, every round."""

    def __call__(self, key: Array, data: FederatedData) -> Array:
        """[1, labeled] client ids."""
        del key
        return data.labeled_ids[None]
