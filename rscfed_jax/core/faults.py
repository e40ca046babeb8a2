"""Simulated faults: clients that do not answer, and clients that send a corrupted model.

Attacks change the parameters alone; batch statistics are sent as they are, because a negative variance would be no
model at all. Attackers are the unlabeled clients with the highest ids, and labeled ones only when those run out: the
labels are what the server trusts.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from rscfed_jax.config import Config, Hyper
from rscfed_jax.core.types import Array, FederatedData, Model

NOISE = 1.0  # standard deviation of the noise attack, some ten times that of the weights of a fresh network
SCALE = 10.0  # factor of the scale attack on a client's own step

Attack = Callable[[Array, Model, Model], Model]  # key, parameters of the client, of the server -> what is sent


def noise(key: Array, local: Model, server: Model) -> Model:
    """The global model plus Gaussian noise: the client's own training is thrown away."""
    del local
    numbers, unravel = ravel_pytree(server)  # one draw for all: a draw for each tensor takes long to compile
    return unravel(numbers + NOISE * jax.random.normal(key, numbers.shape, numbers.dtype))


def sign_flip(key: Array, local: Model, server: Model) -> Model:
    """A step of the client's length in the opposite direction."""
    del key
    return jax.tree.map(lambda new, old: old - (new - old), local, server)


def scale(key: Array, local: Model, server: Model) -> Model:
    """The client's own step, ten times as long."""
    del key
    return jax.tree.map(lambda new, old: old + SCALE * (new - old), local, server)


ATTACKS: dict[str, Attack] = {"noise": noise, "sign-flip": sign_flip, "scale": scale}


@dataclass(frozen=True)
class Faults:
    """Static: which faults a program simulates at all. How many is a matter of Hyper; none at all costs nothing."""

    drops: bool = False
    attack: Attack | None = None
    server: int | None = None  # the holder that always answers, as it is the server; None: all are clients

    @classmethod
    def of(cls, config: Config) -> "Faults":
        """The faults that a config asks for."""
        return cls(config.drop_rate > 0, ATTACKS[config.attack] if config.byzantine > 0 else None, config.server)

    def answers(self, key: Array, ids: Array, subset: Array, hyper: Hyper) -> Array:
        """[n] whether the clients `ids` answer for the subsets [n]; drawn from (seed, round, subset, client)."""
        if not self.drops:
            return jnp.ones(ids.shape, bool)

        def draw(client: Array, number: Array) -> Array:
            return jax.random.uniform(jax.random.fold_in(jax.random.fold_in(key, number), client), dtype=jnp.float32)

        answers = jax.vmap(draw)(ids, subset) >= hyper.drop_rate
        return answers if self.server is None else answers | (ids == self.server)

    def attackers(self, data: FederatedData, hyper: Hyper) -> Array:
        """[N] whether a client is an attacker. A server that holds the labels is the last to become one: never."""
        if self.attack is None:
            return jnp.zeros(data.clients, bool)
        ids = jnp.arange(data.clients)
        turn = jnp.where(data.labeled, 2 * data.clients, data.clients) - ids
        return jnp.sum(turn[None] < turn[:, None], axis=1) < hyper.byzantine

    def sent(self, key: Array, attacker: Array, local: Model, server: Model) -> Model:
        """The model that a client sends to the server."""
        if self.attack is None:
            return local
        corrupted = self.attack(key, local["params"], server["params"])
        params = jax.tree.map(lambda bad, good: jnp.where(attacker, bad, good), corrupted, local["params"])
        return {**local, "params": params}


NO_FAULTS = Faults()
