"""FedIRM: unlabeled clients match the class relations that labeled clients have found.

Liu, Yang, Dou, Heng. Federated semi-supervised medical image classification via inter-client relation matching.
MICCAI 2021. https://arxiv.org/abs/2106.08600

Numbers are those of its code. Choices where it cannot be followed or says nothing:
- The server hands out the mean relation matrix of the round before, as all clients of a round train at once. Before
  the first round it is uniform; after the labeled-only rounds (`--warmup-rounds`, 21) it never is.
- The entropy that filters pseudo-labels is that of one prediction: the models here have no dropout.
- The losses of a labeled sample's two views are added.
- Optimiser, learning rates, batches and augmentation are those of the other methods, for a comparison between equals.
- Models count equally, whatever their data amount. By default the labeled clients have half of the weight together,
  as the RSCFed paper adjusted it; `--labeled-share off --labeled-multiplier 1` is the original.
- The round that the ramp-up counts includes the labeled-only rounds.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from rscfed_jax.aggregation import Consensus, Members
from rscfed_jax.config import Config, Hyper
from rscfed_jax.local.objective import Batch, Bulletin, Losses, consistency, student_logits
from rscfed_jax.methods.base import Method, by_data_amount
from rscfed_jax.sampling import AllClients
from rscfed_jax.types import Array, Model

TEMPERATURE = 2.0  # of the relation matrix
SMOOTHING = 0.1
CONFIDENCE, ENTROPY = 0.3, 2.0  # a pseudo-label is used from this confidence on, below this entropy
FACTOR = 15.0  # of both unlabeled losses
RAMP_ROUNDS = 30


def fedirm(config: Config) -> Method:
    """Every client every round, averaged as equals; the server remembers the labeled clients' relation matrix."""
    del config
    return Method(
        sample=AllClients(),
        aggregate=as_equals,
        warmup=as_equals,
        objective=relation_loss,
        two_views=True,
        memory=uniform_relations,
        remember=labeled_mean,
    )


def as_equals(models: Model, members: Members, hyper: Hyper) -> Consensus:
    """Averages [K, ...] models that count equally within the labeled and within the other clients."""
    return by_data_amount(models, members._replace(sizes=jnp.ones_like(members.sizes)), hyper)


def uniform_relations(network: nn.Module) -> Array:
    """[classes, classes] of a server that knows nothing yet."""
    return jnp.full((network.classes, network.classes), 1 / network.classes)


def labeled_mean(memory: Array, news: Array, members: Members) -> Array:
    """The mean relation matrix of the labeled clients in [M, K]; the old one where none answered."""
    counts = members.labeled & members.healthy
    total = jnp.sum(jnp.where(counts[..., None, None], news, 0), axis=(0, 1))
    number = jnp.sum(counts)
    return jnp.where(number > 0, total / jnp.maximum(number, 1), memory).astype(memory.dtype)


def relation_matrix(logits: Array, labels: Array, mask: Array) -> Array:
    """[classes, classes]: a row for each class, the softmax of its samples' mean logits; uniform where it has none.

    `logits` are [B, classes]; `mask` [B] says which samples count.
    """
    members = jax.nn.one_hot(labels, logits.shape[1], dtype=logits.dtype) * mask[:, None]
    mean = (members.T @ logits) / jnp.maximum(jnp.sum(members, axis=0), 1)[:, None]
    return jax.nn.softmax(mean / TEMPERATURE)


def symmetric_divergence(one: Array, other: Array) -> Array:
    """Half the sum of the two KL divergences between relation matrices, over the number of classes."""
    return jnp.sum((one - other) * (jnp.log(one) - jnp.log(other))) / 2 / one.shape[0]


def ramp(round_: Array) -> Array:
    """How much the unlabeled losses count in a round: it grows to 1 in 30 rounds."""
    return jnp.exp(-5 * (1 - jnp.clip(round_ / RAMP_ROUNDS, 0, 1)) ** 2)


def trusted(logits: Array) -> Array:
    """[B] whether a prediction is sure enough to be a pseudo-label."""
    probabilities = jax.nn.softmax(logits)
    entropy = -jnp.sum(probabilities * jax.nn.log_softmax(logits), axis=1)
    return (jnp.max(probabilities, axis=1) >= CONFIDENCE) & (entropy < ENTROPY)


def smoothed_cross_entropy(logits: Array, labels: Array, mask: Array) -> Array:
    """Mean over the samples that `mask` [B] names, with smoothed labels; zero where it names none."""
    targets = optax.smooth_labels(jax.nn.one_hot(labels, logits.shape[1], dtype=logits.dtype), SMOOTHING)
    return jnp.sum(optax.softmax_cross_entropy(logits, targets) * mask) / jnp.maximum(jnp.sum(mask), 1)


def relation_loss(
    network: nn.Module,
    params: Model,
    stats: Model,
    teacher: Model | None,
    batch: Batch,
    hyper: Hyper,
    bulletin: Bulletin,
) -> tuple[Array, tuple[Model, Losses, Any]]:
    """Cross-entropy on two views of labeled samples; relation matching and consistency on the others.

    The news for the server is the relation matrix of the labeled samples.
    """
    dtype = hyper.tau.dtype
    assert batch.teacher_view is not None  # the method asks for two views
    logits, stats = student_logits(network, params, stats, batch.student_view, batch.valid, dtype)
    other_logits, stats = student_logits(network, params, stats, batch.teacher_view, batch.valid, dtype)
    has_label = batch.labels >= 0
    seen, unseen = batch.valid & has_label, batch.valid & ~has_label
    labels = jnp.where(has_label, batch.labels, 0)
    labeled = smoothed_cross_entropy(logits, labels, seen) + smoothed_cross_entropy(other_logits, labels, seen)
    news = jax.lax.stop_gradient(relation_matrix(logits, labels, seen)).astype(bulletin.memory.dtype)
    if teacher is None:
        return labeled, (stats, Losses(labeled, jnp.zeros_like(labeled)), news)
    teacher_logits = network.apply(teacher, batch.teacher_view, train=False).astype(dtype)
    unlabeled = consistency(logits, teacher_logits, unseen, jnp.ones_like(hyper.tau))
    own = relation_matrix(logits, jnp.argmax(logits, axis=1), unseen & trusted(jax.lax.stop_gradient(logits)))
    matching = symmetric_divergence(own, bulletin.memory.astype(dtype))
    weight = FACTOR * ramp((bulletin.round + hyper.warmup_rounds).astype(dtype))
    return labeled + weight * (matching + unlabeled), (stats, Losses(labeled, unlabeled), news)
