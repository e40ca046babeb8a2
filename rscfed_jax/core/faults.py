"""Simulated faults: clients that do not answer, and clients that send a corrupted model.

Attacks change the parameters alone; batch statistics are sent as they are, because a negative variance would be no
model at all. Who attacks first is a choice; among equals it is the client with the highest id.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from rscfed_jax.config import Config, Hyper
from rscfed_jax.core.types import Array, FederatedData, Model

# Key, parameters of the client and of the server, strength -> what is sent.
Attack = Callable[[Array, Model, Model, Array], Model]
Order = Callable[[FederatedData], Array]  # [N] numbers: clients with the lowest attack first


def noise(key: Array, local: Model, server: Model, strength: Array) -> Model:
    """The global model plus Gaussian noise of deviation `strength`: the client's own training is thrown away."""
    del local
    numbers, unravel = ravel_pytree(server)  # one draw for all: a draw for each tensor takes long to compile
    drawn = jax.random.normal(key, numbers.shape, numbers.dtype)
    return unravel(numbers + jnp.asarray(strength, numbers.dtype) * drawn)


def sign_flip(key: Array, local: Model, server: Model, strength: Array) -> Model:
    """A step in the opposite direction, `strength` times as long as the client's own."""
    del key
    return jax.tree.map(lambda new, old: old - jnp.asarray(strength, old.dtype) * (new - old), local, server)


def scale(key: Array, local: Model, server: Model, strength: Array) -> Model:
    """The client's own step, `strength` times as long."""
    del key
    return jax.tree.map(lambda new, old: old + jnp.asarray(strength, old.dtype) * (new - old), local, server)


def unlabeled_first(data: FederatedData) -> Array:
    """Clients without labels, as the labels are what the server trusts; labeled ones only when those run out."""
    return data.labeled


def labeled_first(data: FederatedData) -> Array:
    """Clients that hold labels; others only when those run out."""
    return ~data.labeled


def largest_first(data: FederatedData) -> Array:
    """Clients with the most samples."""
    return -data.sizes


ATTACKS: dict[str, Attack] = {"noise": noise, "sign-flip": sign_flip, "scale": scale}
ORDERS: dict[str, Order] = {
    "unlabeled-first": unlabeled_first,
    "labeled-first": labeled_first,
    "largest-first": largest_first,
}


@dataclass(frozen=True)
class Faults:
    """Static: which faults a program simulates at all. How many is a matter of Hyper; none at all costs nothing."""

    drops: bool = False
    attack: Attack | None = None
    server: int | None = None  # the holder that always answers, as it is the server; None: all are clients
    order: Order = unlabeled_first

    @classmethod
    def of(cls, config: Config) -> "Faults":
        """The faults that a config asks for."""
        if config.byzantine == 0:
            return cls(config.drop_rate > 0, server=config.server)
        return cls(config.drop_rate > 0, ATTACKS[config.attack], config.server, ORDERS[config.attackers])

    def answers(self, key: Array, ids: Array, subset: Array, hyper: Hyper) -> Array:
        """[n] whether the clients `ids` answer for the subsets [n]; drawn from (seed, round, subset, client)."""
        if not self.drops:
            return jnp.ones(ids.shape, bool)

        def draw(client: Array, number: Array) -> Array:
            return jax.random.uniform(jax.random.fold_in(jax.random.fold_in(key, number), client), dtype=jnp.float32)

        answers = jax.vmap(draw)(ids, subset) >= hyper.drop_rate
        return answers if self.server is None else answers | (ids == self.server)

    def attackers(self, data: FederatedData, hyper: Hyper) -> Array:
        """[N] whether a client is an attacker. A server that holds labels comes last in every order: it never is."""
        if self.attack is None:
            return jnp.zeros(data.clients, bool)
        if data.attackers is not None:
            return data.attackers
        ids = jnp.arange(data.clients)
        is_server = jnp.zeros(data.clients, bool) if self.server is None else ids == self.server
        turns = jnp.lexsort((-ids, self.order(data), is_server))
        return jnp.zeros(data.clients, bool).at[turns].set(ids < hyper.byzantine)

    def sent(self, key: Array, attacker: Array, local: Model, server: Model, hyper: Hyper) -> Model:
        """The model that a client sends to the server."""
        if self.attack is None:
            return local
        corrupted = self.attack(key, local["params"], server["params"], hyper.attack_scale)
        params = jax.tree.map(lambda bad, good: jnp.where(attacker, bad, good), corrupted, local["params"])
        return {**local, "params": params}


NO_FAULTS = Faults()
