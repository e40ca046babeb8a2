"""SemiAnAgg: unlabeled clients are averaged by how far their features are from those of a random anchor network.

Alaa, Ma, Li. Semi-anchored aggregation for federated semi-supervised learning. TMLR 2024.
https://openreview.net/forum?id=TKTn8b0FNI

Labeled clients train with a balanced softmax on a weak and a strong view; the others with labels of the frozen global
model on strong views, above thresholds that rise with what a class has had so far in the round (FlexMatch). Numbers are
those of its code. Choices:
- The anchor is the same random network for every seed; its features are those of the centre of the image, and are
  computed when they are needed.
- A class whose samples point away from the anchor has similarity zero, the least its code can have: it knows only
  networks whose features end in a ReLU. Negative ones would let a client's weight grow without bound.
- Its warm-up is a download of unknown length. Here it is 21 rounds.
- Weight decay, clipping and learning rates are those of the other methods; its code spares the classifier and the
  labeled clients, and trains unlabeled ones at 0.02, not 0.021.
"""

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp

from rscfed_jax.config import Config, Hyper
from rscfed_jax.core.aggregation import Consensus, Members, by_data_amount, with_scores
from rscfed_jax.core.augment import centre, weak
from rscfed_jax.core.method import Method, News, Pause, Sum
from rscfed_jax.core.objective import PseudoLabels, Step, Told, features_and_logits, labeled_loss, student_logits
from rscfed_jax.core.pseudo_labels import hidden, kept_loss
from rscfed_jax.core.randaugment import STRONG_VIEWS
from rscfed_jax.core.types import Array, Losses, Model

SAMPLES = "all"
STRONG_VIEW = True
DEFAULTS = {
    "lambda_u": 1.0,
    "balanced_softmax": True,
    "strong": "torchssl",
    "labeled_share": 0.5,
    "labeled_multiplier": 1.0,
    "warmup_rounds": 21,
}
NUMBERS = {
    "threshold": (0.9, "0..1", "confidence of a label that counts for its class, and the largest threshold of a class"),
    "flexible": (True, "true|false", "classes with few such labels have lower thresholds"),
    "anchored": (True, "true|false", "weigh unlabeled clients by distance from the anchor, not by data amount"),
}
REFUSES = {"labeled_fraction": "needs clients with all of their labels or none; --labeled-fraction gives each a part"}


def method(config: Config) -> Method:
    """One subset of all clients: labeled ones by data amount, the others by similarity."""
    return Method(
        aggregate=by_similarity,
        views={"weak": weak, "strong": STRONG_VIEWS[config.strong], "centre": centre},
        teacher="frozen",
        objective=loss,
        pseudo_labels=True,
        features=True,
        tally=nothing_counted,
        between=count_anew,
        news=similarities_told,
        memory=Anchor(config.image_size),
    )


@dataclass(frozen=True)
class Anchor:
    """A random network that never changes."""

    image_size: int

    def __call__(self, network: nn.Module, model: Model) -> Model:
        """Its variables."""
        del model
        images = jnp.zeros((3, self.image_size, self.image_size, 1), network.dtype)
        return dict(network.init(jax.random.key(0), images, train=False))


def nothing_counted(network: nn.Module, model: Model) -> Array:
    """[classes] confident labels of the epoch so far."""
    del model
    return jnp.zeros(network.classes)


def count_anew(pause: Pause, model: Model, counts: Array, hyper: Hyper) -> tuple[Model, Array]:
    """Counts begin anew in each epoch."""
    del pause, hyper
    return model, jnp.zeros_like(counts)


def flexible_thresholds(counts: Array, size: Array, *, threshold: Array) -> Array:
    """[classes] thresholds that grow from zero with the confident labels of a class, `counts` [classes].

    Samples that have had none yet count as a class of their own, so that all thresholds are low at first.
    """
    unused = size - jnp.sum(counts)
    share = counts / jnp.maximum(jnp.maximum(jnp.max(counts), unused), 1)
    return threshold * share / (2 - share)


def cosine(one: Array, other: Array) -> Array:
    """[B] cosines of the angles between features [B, F]."""
    lengths = jnp.linalg.norm(one, axis=1) * jnp.linalg.norm(other, axis=1)
    return jnp.sum(one * other, axis=1) / jnp.maximum(lengths, 1e-8)


def loss(network: nn.Module, model: Model, step: Step, hyper: Hyper) -> tuple[Array, Told]:
    """Both views of labeled samples; strong views of others with labels of the frozen model above their thresholds."""
    batch, own = step.batch, hyper.own
    on_weak, stats = student_logits(network, model, batch.views["weak"], batch.valid)
    on_strong, stats = student_logits(network, {**model, **stats}, batch.views["strong"], batch.valid)
    labeled = (labeled_loss(on_weak, step) + labeled_loss(on_strong, step)) / 2
    if step.teacher is None:
        return labeled, Told(stats, Losses(labeled, jnp.zeros_like(labeled)))
    features, logits = features_and_logits(network, step.teacher, batch.views["weak"])
    probabilities = jax.nn.softmax(logits)
    labels, confidence = jnp.argmax(probabilities, axis=1), jnp.max(probabilities, axis=1)
    flexible = flexible_thresholds(step.tally.astype(logits.dtype), step.size, threshold=own["threshold"])
    limits = jnp.where(own["flexible"] > 0, flexible, own["threshold"])
    pseudo = PseudoLabels(labels, confidence >= limits[labels])
    unlabeled = kept_loss(on_strong, pseudo, batch)
    confident = (hidden(batch) & (confidence >= own["threshold"])).astype(logits.dtype)
    members = jax.nn.one_hot(labels, logits.shape[1], dtype=logits.dtype) * confident[:, None]
    anchor = features_and_logits(network, step.memory, batch.views["centre"])[0]
    similar = jnp.sum(members * cosine(features, anchor)[:, None], axis=0)
    number = jnp.sum(members, axis=0)
    news = {"similar": similar, "confident": number}
    tally = step.tally + number.astype(step.tally.dtype)
    return labeled + hyper.lambda_u * unlabeled, Told(stats, Losses(labeled, unlabeled), news, tally, pseudo)


def similarities_told(network: nn.Module) -> dict[str, News]:
    """A client reports, by class, the similarities of its confident samples to the anchor, and their number."""
    return {"similar": Sum((network.classes,)), "confident": Sum((network.classes,))}


def anchored_scores(news: dict[str, Array], counted: Array) -> Array:
    """[K] scores of clients: the less similar to the anchor in a class, compared with the others, the higher.

    A class of which a client has no confident sample counts as similar. Members not `counted` are left out.
    """
    number = news["confident"]
    similarity = jnp.where(number > 0, jnp.maximum(news["similar"], 0) / jnp.maximum(number, 1), 1.0)
    total = jnp.sum(jnp.where(counted[:, None], similarity, 0), axis=0)
    scores = jnp.sum(1 - similarity / jnp.where(total == 0, 1, total), axis=1)
    return jnp.where(counted, scores, 0)


def by_similarity(models: Model, members: Members, hyper: Hyper) -> Consensus:
    """Averages [K, ...] models: labeled ones by data amount, others by score; none if none was confident."""
    others = members.healthy & ~members.labeled
    scores = jnp.where(
        hyper.own["anchored"] > 0, anchored_scores(members.news, others), members.sizes.astype(jnp.float32)
    )
    any_kept = jnp.any(jnp.where(others[:, None], members.news["confident"], 0) > 0)
    alone = jnp.sum(others) == 1  # its score is zero: it is all there is
    scores = jnp.where(alone, 1.0, scores) * (any_kept | ~jnp.any(members.healthy & members.labeled))
    return by_data_amount(models, with_scores(members, scores, ~members.labeled), hyper)
