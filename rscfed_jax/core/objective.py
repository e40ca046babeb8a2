"""The loss of one local step: equations 1 to 3 of the paper.

One objective serves labeled, unlabeled and partly labeled clients: a mask says whose label may be used.
"""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from rscfed_jax.config import Hyper
from rscfed_jax.core.types import Array, Losses, Model


class Batch(NamedTuple):
    """What a client sees in one step: B samples, of which the last batch of an epoch fills only a part."""

    views: dict[str, Array]  # [3, H, W, B] each: the method's augmentations of the samples by name
    labels: Array  # [B], negative where hidden
    valid: Array  # [B] whether the sample is really there
    positions: Array | None = None  # [B] int32: places of the samples among the client's
    pseudo_labels: Array | None = None  # [B] the visible label or what the method's `prepare` said
    partner: "Batch | None" = None  # as many samples of the client, drawn at random, if the method asks for them


class Step(NamedTuple):
    """One local step, as an objective sees it."""

    key: Array  # for anything random
    batch: Batch
    teacher: Model | None  # None where the method has none, in the warm-up, and where all samples have labels
    sent: Model  # the model that the client began the round with
    round: Array  # int32, counted from 0; negative in the warm-up
    memory: Any  # what the method's server remembers
    class_counts: Array  # [classes] visible labels of each class that the client holds
    size: Array  # int32: samples that the client holds
    prior: Array | None = None  # [classes] log shares of the visible labels, where `--balanced-softmax` asks for it
    statistics: Any = None  # what the method's `prepare` summed up
    tally: Any = None  # what the method's client carries through its steps


class PseudoLabels(NamedTuple):
    """What an objective takes for the labels of B samples."""

    labels: Array  # [B] int32
    keep: Array  # [B] bool: the label is trusted


class Told(NamedTuple):
    """What an objective returns beside the loss."""

    stats: Model  # the new batch statistics
    losses: Losses
    news: dict[str, Array] = {}  # noqa: RUF012 - for the server, of the shapes that the method declares; never changed
    tally: Any = None
    pseudo: PseudoLabels | None = None  # to be judged by the truth


def sharpen(logits: Array, tau: Array) -> Array:
    """Equation 2: softmax(z)^(1/tau), normalised, which is softmax(z / tau) without underflow."""
    return jax.nn.softmax(logits / tau)


def cross_entropy(logits: Array, labels: Array, mask: Array) -> Array:
    """Equation 1: mean over the samples that `mask` [B] names; zero where it names none."""
    return jnp.sum(cross_entropies(logits, jnp.where(mask, labels, 0)) * mask) / jnp.maximum(jnp.sum(mask), 1)


def cross_entropies(logits: Array, labels: Array) -> Array:
    """[B] cross-entropies of [B, classes] logits on labels [B]."""
    by_lookup = optax.softmax_cross_entropy_with_integer_labels
    return jax.lax.platform_dependent(logits, labels, cpu=by_lookup, default=cross_entropies_by_comparison)


def cross_entropies_by_comparison(logits: Array, labels: Array) -> Array:
    """The same without a lookup, whose gradient is a scatter: GPUs add in any order."""
    own = labels[:, None] == jnp.arange(logits.shape[1])
    return jax.nn.logsumexp(logits, axis=1) - jnp.sum(jnp.where(own, logits, 0), axis=1)


def labeled_loss(logits: Array, step: Step) -> Array:
    """Cross-entropy of [B, classes] logits on the visible labels of the batch, balanced if the settings ask for it."""
    batch = step.batch
    return cross_entropy(balanced(logits, step), batch.labels, batch.valid & (batch.labels >= 0))


def balanced(logits: Array, step: Step) -> Array:
    """Balanced softmax: logits [B, classes] plus the log shares of the client's classes. Otherwise as they are.

    Ren et al. NeurIPS 2020. https://arxiv.org/abs/2007.10740
    """
    return logits if step.prior is None else logits + step.prior.astype(logits.dtype)


def consistency(student_logits: Array, teacher_logits: Array, mask: Array, tau: Array) -> Array:
    """Equation 3: squared distance to the sharpened teacher, summed, over the nominal size even of a short batch."""
    target = jax.lax.stop_gradient(sharpen(teacher_logits, tau))
    squares = jnp.sum((target - jax.nn.softmax(student_logits)) ** 2, axis=-1)
    return jnp.sum(squares * mask) / mask.shape[0]


def float_type(model: Model) -> Any:
    """The type of a model's parameters: losses are computed in it, never in half precision."""
    return jax.tree.leaves(model["params"])[0].dtype


def student_logits(network: nn.Module, model: Model, view: Array, valid: Array) -> tuple[Array, Model]:
    """[B, classes] logits of a view in training mode, and the new batch statistics."""
    stats = [name for name in model if name != "params"]
    logits, new = network.apply(model, view, train=True, valid=valid, mutable=stats)
    return logits.astype(float_type(model)), new


def teacher_logits(network: nn.Module, teacher: Model, view: Array) -> Array:
    """[B, classes] logits of a view in evaluation mode."""
    return network.apply(teacher, view, train=False).astype(float_type(teacher))


def features_and_logits(network: nn.Module, model: Model, view: Array) -> tuple[Array, Array]:
    """[B, F] features and [B, classes] logits of a view in evaluation mode; features are what the classifier sees.

    A network gives its features by `self.sow("intermediates", "features", x)`; a ValueError names one that does not.
    """
    logits, told = network.apply(model, view, train=False, mutable=["intermediates"])
    if "features" not in told.get("intermediates", {}):
        raise ValueError(f"the network {type(network).__name__} gives no features: it must sow them as intermediates")
    features = told["intermediates"]["features"][-1]
    return features.astype(float_type(model)), logits.astype(float_type(model))


def mean_teacher_loss(network: nn.Module, model: Model, step: Step, hyper: Hyper) -> tuple[Array, Told]:
    """Cross-entropy on labeled samples plus lambda_u times consistency on the others, which needs a teacher."""
    batch = step.batch
    logits, stats = student_logits(network, model, batch.views["student"], batch.valid)
    labeled = labeled_loss(logits, step)
    if step.teacher is None:
        return labeled, Told(stats, Losses(labeled, jnp.zeros_like(labeled)))
    target = teacher_logits(network, step.teacher, batch.views["teacher"])
    unlabeled = consistency(logits, target, batch.valid & (batch.labels < 0), hyper.tau)
    return labeled + hyper.lambda_u * unlabeled, Told(stats, Losses(labeled, unlabeled))
