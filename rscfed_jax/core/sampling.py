"""Who takes part in a round: samplers are small static objects that map a key to [M, K] client ids.

`slots` gives, without drawing, how often each client takes part on average: plans and time estimates ask it.

With `--labels-at server` the last of the N holders of data is the server. `server_joins` says whether it is in every
subset, or in none because it trains after them, in the second phase of the round; None: all N are clients.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rscfed_jax.config import Config, SettingError
from rscfed_jax.core.types import Array, FederatedData

MOST_SORTED = 65_536  # clients of which a subset is drawn by sorting one number for each


@dataclass(frozen=True)
class RandomSubsets:
    """M subsets, drawn independently, each of K of the clients without replacement."""

    subsets: int
    subset_size: int
    server_joins: bool | None = None

    def __call__(self, key: Array, data: FederatedData) -> Array:
        """[M, K] client ids; [M, K + 1] with that of the server."""
        return self.draw(key, data.clients)

    def draw(self, key: Array, holders: int) -> Array:
        """As `__call__`, for this number of holders."""
        clients = _clients(holders, self.server_joins)
        if self.subset_size > clients:
            raise SettingError("subset_size", self.subset_size, f"must be from 1 to --clients {clients}")

        def draw(subset: Array) -> Array:
            own_key = jax.random.fold_in(key, subset)
            if clients > MOST_SORTED:
                return distinct(own_key, self.subset_size, clients)
            # Sorting one draw per client instead of permuting ids: a client's luck then depends on its id alone.
            luck = jax.random.uniform(own_key, (clients,), jnp.float32)
            return jnp.argsort(luck)[: self.subset_size].astype(jnp.int32)

        drawn = jax.vmap(draw)(jnp.arange(self.subsets))
        return jnp.pad(drawn, ((0, 0), (0, 1)), constant_values=clients) if self.server_joins else drawn

    def slots(self, labeled: np.ndarray) -> np.ndarray:
        """[N] how often each client is drawn in a round, on average; `labeled` [N] says who holds labels."""
        clients = _clients(len(labeled), self.server_joins)
        slots = np.full(len(labeled), self.subsets * self.subset_size / clients)
        slots[clients:] = self.subsets if self.server_joins else 0
        return slots


@dataclass(frozen=True)
class AllClients:
    """One subset of all clients, every round."""

    server_joins: bool | None = None

    def __call__(self, key: Array, data: FederatedData) -> Array:
        """[1, N] client ids."""
        del key
        members = data.clients if self.server_joins else _clients(data.clients, self.server_joins)
        return jnp.arange(members, dtype=jnp.int32)[None]

    def slots(self, labeled: np.ndarray) -> np.ndarray:
        """[N] ones, but for a server that does not join."""
        slots = np.ones(len(labeled))
        slots[_clients(len(labeled), self.server_joins) :] = float(bool(self.server_joins))
        return slots


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


def distinct(key: Array, number: int, clients: int) -> Array:
    """[number] different ids below `clients`, by Floyd's algorithm: no work grows with the number of clients."""
    last = jnp.arange(clients - number, clients, dtype=jnp.int32)
    luck = jax.random.randint(key, (number,), 0, last + 1, jnp.int32)

    def draw(place: Array, chosen: Array) -> Array:
        taken = jnp.any(chosen == luck[place])
        return chosen.at[place].set(jnp.where(taken, last[place], luck[place]))

    return jax.lax.fori_loop(0, number, draw, jnp.full(number, -1, jnp.int32))


def _clients(holders: int, server_joins: bool | None) -> int:
    """How many of the holders are clients."""
    return holders if server_joins is None else holders - 1


# What a method's file calls SAMPLES: from a config and whether the server joins to a sampler. Where the server holds
# labels, it is the only labeled holder, and all clients are unlabeled.
SAMPLERS: dict[str, Callable[..., Any]] = {
    "subsets": lambda config, server_joins=None: RandomSubsets(config.subsets, config.subset_size, server_joins),
    "all": lambda config, server_joins=None: AllClients(server_joins),
    "labeled": lambda config, server_joins=None: LabeledClients(),
    "unlabeled": lambda config, server_joins=None: UnlabeledClients(),
}


def sampler_of(config: Config, *, second_phase: bool) -> Any:
    """The sampler of a config; in a method with a second phase the server trains then, and does not join before."""
    return SAMPLERS[config.samples or "subsets"](config, None if config.server is None else not second_phase)
