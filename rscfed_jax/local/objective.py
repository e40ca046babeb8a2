"""The loss of one local step: equations 1 to 3 of the paper.

One objective serves labeled, unlabeled and partly labeled clients: a mask says whose label may be used.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.typing import DTypeLike

from rscfed_jax.config import Hyper
from rscfed_jax.types import Array, Model


class Batch(NamedTuple):
    """What a client sees in one step: B samples, of which the last batch of an epoch fills only a part."""

    student_view: Array  # [3, H, W, B]
    teacher_view: Array | None  # [3, H, W, B], another augmentation of the same samples; None where nobody needs it
    labels: Array  # [B], negative where hidden
    valid: Array  # [B] whether the sample is really there


class Bulletin(NamedTuple):
    """What the server tells every client beside the model."""

    round: Array  # int32, counted from 0; negative in the warm-up
    memory: Any  # what a method's server remembers; None for most


class Losses(NamedTuple):
    """The two parts of the loss, before they are weighed."""

    labeled: Array
    consistency: Array


def sharpen(logits: Array, tau: Array) -> Array:
    """Equation 2: softmax(z)^(1/tau), normalised, which is softmax(z / tau) without underflow."""
    return jax.nn.softmax(logits / tau)


def cross_entropy(logits: Array, labels: Array, mask: Array) -> Array:
    """Equation 1: mean over the samples that `mask` [B] names; zero where it names none."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.where(mask, labels, 0))
    return jnp.sum(losses * mask) / jnp.maximum(jnp.sum(mask), 1)


def consistency(student_logits: Array, teacher_logits: Array, mask: Array, tau: Array) -> Array:
    """Equation 3: squared distance to the sharpened teacher, summed, over the nominal size even of a short batch."""
    target = jax.lax.stop_gradient(sharpen(teacher_logits, tau))
    squares = jnp.sum((target - jax.nn.softmax(student_logits)) ** 2, axis=-1)
    return jnp.sum(squares * mask) / mask.shape[0]


def student_logits(
    network: nn.Module, params: Model, stats: Model, view: Array, valid: Array, dtype: DTypeLike
) -> tuple[Array, Model]:
    """[B, classes] logits of a view in training mode, and the new batch statistics."""
    variables = {"params": params, **stats}
    logits, stats = network.apply(variables, view, train=True, valid=valid, mutable=list(stats))
    return logits.astype(dtype), stats  # losses are never computed in half precision


def mean_teacher_loss(
    network: nn.Module,
    params: Model,
    stats: Model,
    teacher: Model | None,
    batch: Batch,
    hyper: Hyper,
    bulletin: Bulletin,
) -> tuple[Array, tuple[Model, Losses, Any]]:
    """Cross-entropy on labeled samples plus lambda_u times consistency on the others.

    Returns the loss, and the new batch statistics, the parts of the loss, and news for the server: none. Without a
    teacher, the second part is 0.
    """
    del bulletin
    logits, stats = student_logits(network, params, stats, batch.student_view, batch.valid, hyper.tau.dtype)
    has_label = batch.labels >= 0
    labeled = cross_entropy(logits, batch.labels, batch.valid & has_label)
    if teacher is None:
        return labeled, (stats, Losses(labeled, jnp.zeros_like(labeled)), None)
    teacher_logits = network.apply(teacher, batch.teacher_view, train=False).astype(logits.dtype)
    unlabeled = consistency(logits, teacher_logits, batch.valid & ~has_label, hyper.tau)
    return labeled + hyper.lambda_u * unlabeled, (stats, Losses(labeled, unlabeled), None)


# News, which the server gets as the mean over a client's steps, has the shape of the server's memory.
Objective = Callable[..., tuple[Array, tuple[Model, Losses, Any]]]
