"""How a client's numbers move: SGD by PyTorch's rules, and the mean teacher that follows it (equation 4)."""

import jax
import jax.numpy as jnp
import optax

from rscfed_jax.config import Hyper
from rscfed_jax.core.types import Array, ClientState, Model


def clip_by_global_norm(max_norm: Array) -> optax.GradientTransformation:
    """Scales a gradient down to `max_norm` by PyTorch's rule, which adds 1e-6 to the norm it divides by."""

    def update(updates: Model, state: optax.EmptyState, params: Model | None = None) -> tuple[Model, optax.EmptyState]:
        del params
        scale = jnp.minimum(1.0, max_norm / (optax.tree.norm(updates) + 1e-6))
        return jax.tree.map(lambda u: u * scale, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def sgd(hyper: Hyper, learning_rate: Array) -> optax.GradientTransformation:
    """Clipping, then L2 weight decay added to the gradient, then momentum: the order of PyTorch's SGD."""
    return optax.chain(
        clip_by_global_norm(hyper.clip_norm),
        optax.add_decayed_weights(hyper.weight_decay),
        optax.sgd(learning_rate, momentum=hyper.momentum),
    )


def init_client(model: Model, hyper: Hyper, *, with_teacher: bool) -> ClientState:
    """The state of a client that was never selected; its teacher starts with the first selection."""
    return ClientState(
        teacher=jax.tree.map(jnp.zeros_like, model) if with_teacher else None,
        optimizer=sgd(hyper, hyper.lr_labeled).init(model["params"]),
        step=jnp.int32(0),
    )


def ema(teacher: Model, params: Model, keep: Array) -> Model:
    """Equation 4: the teacher's parameters move toward the student's; its batch statistics stay."""
    mixed = jax.tree.map(lambda t, p: keep * t + (1 - keep) * p, teacher["params"], params)
    return {**teacher, "params": mixed}


def ema_keep(step: Array, hyper: Hyper) -> Array:
    """The keep factor of the EMA in the client's step number `step`, counted from 0 over its whole life.

    With the published warm-up the teacher becomes the student in step 0, then follows more and more slowly.
    """
    early = jnp.minimum(1 - jnp.ones_like(hyper.ema) / (step + 1), hyper.ema)
    return jnp.where(hyper.ema_warmup > 0, early, hyper.ema)
