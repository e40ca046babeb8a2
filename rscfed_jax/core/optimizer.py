"""Updates: a client's SGD by PyTorch's rules, the teacher that follows it (equation 4), the server's steps."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from rscfed_jax.config import Hyper
from rscfed_jax.core.types import Array, ClientState, Model


def clip_by_global_norm(max_norm: Array) -> optax.GradientTransformation:
    """Scales a gradient down to `max_norm` by PyTorch's rule, which adds 1e-6 to the norm it divides by."""

    def update(updates: Model, state: optax.EmptyState, params: Model | None = None) -> tuple[Model, optax.EmptyState]:
        del params
        scale = jnp.minimum(1.0, max_norm / (norm(updates) + 1e-6))
        return jax.tree.map(lambda u: u * scale, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def norm(tree: Model) -> Array:
    """The Euclidean norm of all numbers of a tree; on accelerators in one sum, where each leaf would be a kernel."""
    return jax.lax.platform_dependent(tree, cpu=optax.tree.norm, default=norm_of_all)


def norm_of_all(tree: Model) -> Array:
    """Convolution kernels [k, k, C, O] are read as [O, C, k, k], the order in which cuDNN leaves their gradients."""
    leaves = [jnp.moveaxis(leaf, (3, 2), (0, 1)) if leaf.ndim == 4 else leaf for leaf in jax.tree.leaves(tree)]
    return jnp.linalg.norm(jnp.concatenate([leaf.reshape(-1) for leaf in leaves]))


def sgd(hyper: Hyper, learning_rate: Array) -> optax.GradientTransformation:
    """Clipping, then L2 weight decay added to the gradient, then momentum: the order of PyTorch's SGD."""
    return optax.chain(
        clip_by_global_norm(hyper.clip_norm),
        optax.add_decayed_weights(hyper.weight_decay),
        optax.sgd(learning_rate, momentum=hyper.momentum),
    )


def scheduled(learning_rate: Array, round_: Array, hyper: Hyper) -> Array:
    """A learning rate in a round: constant, or half a cosine that reaches zero after `cosine_rounds`."""
    done = jnp.clip(round_ / jnp.maximum(hyper.cosine_rounds, 1), 0, 1)
    return learning_rate * jnp.where(hyper.cosine_rounds > 0, (1 + jnp.cos(jnp.pi * done)) / 2, 1.0)


def toward(grads: Model, params: Model, sent: Model, *, mu: Array) -> Model:
    """Gradients with FedProx's term, mu / 2 times the squared distance from the parameters that were sent."""
    return jax.tree.map(lambda grad, now, before: grad + mu * (now - before), grads, params, sent)


ServerOptimizer = Callable[[Hyper], optax.GradientTransformation]


def server_momentum(hyper: Hyper) -> optax.GradientTransformation:
    """FedAvgM: Hsu, Qi, Brown. 2019. https://arxiv.org/abs/1909.06335."""
    return optax.sgd(hyper.server_lr, momentum=hyper.server_momentum)


def server_adam(hyper: Hyper) -> optax.GradientTransformation:
    """FedAdam, with the constants of Reddi et al. ICLR 2021. https://arxiv.org/abs/2003.00295."""
    return optax.adam(hyper.server_lr, b1=hyper.server_momentum, b2=0.99, eps=1e-3)


SERVER_OPTIMIZERS: dict[str, ServerOptimizer | None] = {
    "none": None,
    "momentum": server_momentum,
    "adam": server_adam,
}


def server_step(
    optimizer: ServerOptimizer, state: optax.OptState, before: Model, mean: Model, hyper: Hyper
) -> tuple[Model, optax.OptState]:
    """The global model after a step along `before` - `mean`; batch statistics are those of the mean."""
    gradient = jax.tree.map(jnp.subtract, before["params"], mean["params"])
    updates, state = optimizer(hyper).update(gradient, state, before["params"])
    return {**mean, "params": optax.apply_updates(before["params"], updates)}, state


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
