"""Parts that methods with pseudo-labels share: confident labels, and the loss on the ones that are kept."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from rscfed_jax.config import Hyper
from rscfed_jax.core.objective import (
    Batch,
    PseudoLabels,
    Step,
    Told,
    cross_entropies,
    labeled_loss,
    student_logits,
)
from rscfed_jax.core.types import Array, Losses, Model


def confident(logits: Array, threshold: Array) -> PseudoLabels:
    """The most probable class of [B, classes] logits, kept from a confidence of `threshold` on, a number or [B]."""
    probabilities = jax.nn.softmax(jax.lax.stop_gradient(logits))
    return PseudoLabels(jnp.argmax(probabilities, axis=1), jnp.max(probabilities, axis=1) >= threshold)


def hidden(batch: Batch) -> Array:
    """[B] which samples are there without a visible label."""
    return batch.valid & (batch.labels < 0)


def supervised_loss(network: nn.Module, model: Model, step: Step, hyper: Hyper) -> tuple[Array, Told]:
    """Cross-entropy on the visible labels of the weak view alone, as in a warm-up."""
    del hyper
    batch = step.batch
    logits, stats = student_logits(network, model, batch.views["weak"], batch.valid)
    labeled = labeled_loss(logits, step)
    return labeled, Told(stats, Losses(labeled, jnp.zeros_like(labeled)))


def weak_if_labeled(batch: Batch) -> Array:
    """[3, H, W, B] images to train on: the weak view of a labeled sample, the strong view of another one."""
    return jnp.where(batch.labels >= 0, batch.views["weak"], batch.views["strong"])


def kept_loss(logits: Array, pseudo: PseudoLabels, batch: Batch) -> Array:
    """Cross-entropy on kept pseudo-labels, the mean over all unlabeled samples; those not kept count as zero."""
    losses = cross_entropies(logits, pseudo.labels)
    return mean_over_hidden(losses * pseudo.keep, batch)


def mean_over_hidden(values: Array, batch: Batch) -> Array:
    """The mean of [B] values over the unlabeled samples; zero where there is none."""
    counted = hidden(batch)
    return jnp.sum(jnp.where(counted, values, 0)) / jnp.maximum(jnp.sum(counted), 1)
