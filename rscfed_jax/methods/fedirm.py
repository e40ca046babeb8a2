"""FedIRM: unlabeled clients match the class relations that labeled clients have found.

Liu, Yang, Dou, Heng. Federated semi-supervised medical image classification via inter-client relation matching.
MICCAI 2021. https://arxiv.org/abs/2106.08600

Numbers are those of its code. Choices where it cannot be followed or says nothing:
- The server hands out the mean relation matrix of the round before, as all clients of a round train at once. Before
  the first round it is uniform; after the labeled-only rounds (`--warmup-rounds`, 21) it never is.
- The teacher normalises with the statistics of the batch, as in its code, but follows the student at one pace from the
  first step on.
- The entropy that filters pseudo-labels is that of one prediction: the models here have no dropout.
- The losses of a labeled sample's two views are added.
- Optimiser, learning rates, batches and augmentation are those of the other methods, for a comparison between equals.
- Models count equally, whatever their data amount. By default the labeled clients have half of the weight together,
  as the RSCFed paper adjusted it; `--labeled-share off --labeled-multiplier 1` is the original.
- The round that the ramp-up counts includes the labeled-only rounds.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from rscfed_jax.config import Config, Hyper
from rscfed_jax.core.aggregation import Members, as_equals
from rscfed_jax.core.method import Mean, Method, News, Server
from rscfed_jax.core.objective import PseudoLabels, Step, Told, consistency, student_logits
from rscfed_jax.core.types import Array, Losses, Model

SAMPLES = "all"
DEFAULTS = {"ema": 0.99, "warmup_rounds": 21}
NUMBERS = {
    "temperature": (2.0, "above 0", "temperature of the class-relation matrix"),
    "smoothing": (0.1, "0..1", "label smoothing of the labeled loss"),
    "confidence": (0.3, "0..1", "confidence from which a pseudo-label counts"),
    "entropy": (2.0, "above 0", "entropy below which a pseudo-label counts"),
    "factor": (15.0, "0..", "factor of both unlabeled losses"),
    "ramp_rounds": (30.0, "above 0", "rounds in which that factor grows to its value, warm-up included"),
}
REFUSES = {
    "labeled_fraction": "needs clients with all their labels; --labeled-fraction gives each only a part",
    "balanced_softmax": "smooths its labels, so that --balanced-softmax would raise classes that a client lacks",
}


def method(config: Config) -> Method:
    """Every client every round, averaged as equals; the server remembers the labeled clients' relation matrix."""
    del config
    return Method(
        aggregate=as_equals,
        warmup=as_equals,
        objective=relation_loss,
        pseudo_labels=True,
        news=relations,
        memory=uniform_relations,
        serve=labeled_relations,
    )


def relations(network: nn.Module) -> dict[str, News]:
    """A client reports its class-relation matrix, the mean over its batches."""
    return {"relations": Mean((network.classes, network.classes))}


def uniform_relations(network: nn.Module, model: Model) -> Array:
    """[classes, classes] of a server that knows nothing yet."""
    del model
    return jnp.full((network.classes, network.classes), 1 / network.classes)


def labeled_relations(server: Server, members: Members, hyper: Hyper) -> tuple[Model, Array]:
    """The mean of the models, and the mean relation matrix of the labeled clients in [M, K]."""
    del hyper
    return server.mean, labeled_mean(server.memory, members)


def labeled_mean(memory: Array, members: Members) -> Array:
    """The mean relation matrix of the labeled clients in [M, K]; the old one where none answered."""
    counts = members.labeled & members.healthy
    total = jnp.sum(jnp.where(counts[..., None, None], members.news["relations"], 0), axis=(0, 1))
    number = jnp.sum(counts)
    return jnp.where(number > 0, total / jnp.maximum(number, 1), memory).astype(memory.dtype)


def relation_matrix(logits: Array, labels: Array, mask: Array, *, temperature: Array) -> Array:
    """[classes, classes]: a row for each class, the softmax of its samples' mean logits; uniform where it has none.

    `logits` are [B, classes]; `mask` [B] says which samples count.
    """
    members = jax.nn.one_hot(labels, logits.shape[1], dtype=logits.dtype) * mask[:, None]
    mean = (members.T @ logits) / jnp.maximum(jnp.sum(members, axis=0), 1)[:, None]
    return jax.nn.softmax(mean / temperature)


def symmetric_divergence(one: Array, other: Array) -> Array:
    """Half the sum of the two KL divergences between relation matrices, over the number of classes."""
    return jnp.sum((one - other) * (finite_log(one) - finite_log(other))) / 2 / one.shape[0]


def finite_log(probabilities: Array) -> Array:
    """The logarithm of probabilities, of which a softmax of distant logits makes some zero."""
    return jnp.log(jnp.maximum(probabilities, jnp.finfo(probabilities.dtype).tiny))


def ramp(round_: Array, *, rounds: Array) -> Array:
    """The weight of the unlabeled losses in a round; it grows to 1 in `rounds` rounds."""
    return jnp.exp(-5 * (1 - jnp.clip(round_ / rounds, 0, 1)) ** 2)


def trusted(logits: Array, *, confidence: Array, entropy: Array) -> Array:
    """[B] whether a prediction is sure enough to be a pseudo-label."""
    probabilities = jax.nn.softmax(logits)
    own_entropy = -jnp.sum(probabilities * jax.nn.log_softmax(logits), axis=1)
    return (jnp.max(probabilities, axis=1) >= confidence) & (own_entropy < entropy)


def smoothed_cross_entropy(logits: Array, labels: Array, mask: Array, *, smoothing: Array) -> Array:
    """Mean over the samples that `mask` [B] names, with smoothed labels; zero where it names none."""
    targets = optax.smooth_labels(jax.nn.one_hot(labels, logits.shape[1], dtype=logits.dtype), smoothing)
    return jnp.sum(optax.softmax_cross_entropy(logits, targets) * mask) / jnp.maximum(jnp.sum(mask), 1)


def relation_loss(network: nn.Module, model: Model, step: Step, hyper: Hyper) -> tuple[Array, Told]:
    """Cross-entropy on two views of labeled samples; relation matching and consistency on the others.

    The news for the server is the relation matrix of the labeled samples.
    """
    batch, own = step.batch, hyper.own
    logits, stats = student_logits(network, model, batch.views["student"], batch.valid)
    other_logits, stats = student_logits(network, {**model, **stats}, batch.views["teacher"], batch.valid)
    has_label = batch.labels >= 0
    seen, unseen = batch.valid & has_label, batch.valid & ~has_label
    labels = jnp.where(has_label, batch.labels, 0)
    smoothing, temperature = own["smoothing"], own["temperature"]
    labeled = smoothed_cross_entropy(logits, labels, seen, smoothing=smoothing)
    labeled += smoothed_cross_entropy(other_logits, labels, seen, smoothing=smoothing)
    news = {"relations": jax.lax.stop_gradient(relation_matrix(logits, labels, seen, temperature=temperature))}
    if step.teacher is None:
        return labeled, Told(stats, Losses(labeled, jnp.zeros_like(labeled)), news)
    target, _ = student_logits(network, step.teacher, batch.views["teacher"], batch.valid)
    unlabeled = consistency(logits, target, unseen, jnp.ones_like(hyper.tau))
    sure = trusted(jax.lax.stop_gradient(logits), confidence=own["confidence"], entropy=own["entropy"])
    pseudo = PseudoLabels(jnp.argmax(logits, axis=1), sure)
    found = relation_matrix(logits, pseudo.labels, unseen & sure, temperature=temperature)
    matching = symmetric_divergence(found, step.memory.astype(logits.dtype))
    in_round = (step.round + hyper.warmup_rounds).astype(logits.dtype)
    weight = own["factor"] * ramp(in_round, rounds=own["ramp_rounds"])
    return labeled + weight * (matching + unlabeled), Told(stats, Losses(labeled, unlabeled), news, pseudo=pseudo)
