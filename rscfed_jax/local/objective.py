"""The loss of one local step: equations 1 to 3 of the paper.

One objective serves labeled, unlabeled and partly labeled clients: a mask says whose label may be used.
"""

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from rscfed_jax.config import Hyper
from rscfed_jax.types import Array, Model


class Batch(NamedTuple):
    """What a client sees in one step: B samples, of which the last batch of an epoch fills only a part."""

    student_view: Array  # [3, H, W, B]
    teacher_view: Array | None  # [3, H, W, B], another augmentation of the same samples; None without a teacher
    labels: Array  # [B], negative where hidden
    valid: Array  # [B] whether the sample is really there


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


def mean_teacher_loss(
    network: nn.Module, params: Model, stats: Model, teacher: Model | None, batch: Batch, hyper: Hyper
) -> tuple[Array, tuple[Model, Losses]]:
    """Cross-entropy on labeled samples plus lambda_u times consistency on the others.

    Returns the loss, and the new batch statistics with the parts of the loss. Without a teacher, the second part is 0.
    """
    logits, stats = network.apply(
        {"params": params, **stats}, batch.student_view, train=True, valid=batch.valid, mutable=list(stats)
    )
    logits = logits.astype(hyper.tau.dtype)  # losses are never computed in half precision
    has_label = batch.labels >= 0
    labeled = cross_entropy(logits, batch.labels, batch.valid & has_label)
    if teacher is None:
        return labeled, (stats, Losses(labeled, jnp.zeros_like(labeled)))
    teacher_logits = network.apply(teacher, batch.teacher_view, train=False).astype(logits.dtype)
    unlabeled = consistency(logits, teacher_logits, batch.valid & ~has_label, hyper.tau)
    return labeled + hyper.lambda_u * unlabeled, (stats, Losses(labeled, unlabeled))


Objective = Callable[..., tuple[Array, tuple[Model, Losses]]]
