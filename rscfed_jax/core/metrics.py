"""Metrics of the global model on the test set, on the device and as scikit-learn defines them.

A metric is an entry of `METRICS`, its name and its title, and the function of that name. Evaluation, run directories,
reports, TensorBoard and tables share this list. Errors are in `LOWER_IS_BETTER`, too.
"""

from collections import namedtuple
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from rscfed_jax.core.augment import normalise
from rscfed_jax.core.client_axis import ONE_AT_A_TIME, ClientAxis
from rscfed_jax.core.pixels import unpack_pixels
from rscfed_jax.core.types import Array, Model, TestData

METRICS = {
    "accuracy": "Accuracy",
    "auc": "AUC",
    "precision": "Precision",
    "recall": "Recall",
    "balanced_accuracy": "Balanced accuracy",
    "f1": "Macro F1",
    "calibration_error": "Calibration error",
}
LOWER_IS_BETTER = ("calibration_error",)
Metrics = namedtuple("Metrics", METRICS)  # type: ignore[misc]  # fractions, in the order of the list

CALIBRATION_BINS = 15
EVAL_BATCH = 250
EVAL_PIXELS = EVAL_BATCH * 32 * 32  # larger images are evaluated in smaller batches, or memory would run out


class Predictions(NamedTuple):
    """What metrics are computed of."""

    probabilities: Array  # [T, C]
    labels: Array  # [T]
    confusion: Array  # [C, C] counts; rows are the true classes


def macro_auc(probabilities: Array, labels: Array) -> Array:
    """One-vs-rest AUC of [T, C] probabilities: how often a sample of the class outranks another, ties counted half.

    A class without samples, or with all of them, has no AUC and is left out; NaN if none has one. Ranks are summed as
    whole numbers in two parts, because float32 would lose digits.
    """

    def one_class(scores: Array, positive: Array) -> tuple[Array, Array]:
        order = jnp.argsort(scores)
        negatives = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(~positive[order], dtype=jnp.int32)])
        ranked = scores[order]
        below = negatives[jnp.searchsorted(ranked, scores, side="left")]
        not_above = negatives[jnp.searchsorted(ranked, scores, side="right")]
        outranked = jnp.where(positive, below + not_above, 0)  # twice the number of negatives
        total = jnp.sum(outranked >> 12) * 4096.0 + jnp.sum(outranked & 4095)
        pairs = 2.0 * jnp.sum(positive) * jnp.sum(~positive)
        return total / jnp.maximum(pairs, 1), pairs > 0

    positive = labels == jnp.arange(probabilities.shape[1])[:, None]
    auc, defined = jax.vmap(one_class)(probabilities.T, positive)
    return jnp.sum(auc * defined) / jnp.sum(defined)


def accuracy(seen: Predictions) -> Array:
    """The part of the samples whose most probable class is the right one."""
    return jnp.sum(jnp.diag(seen.confusion)) / len(seen.labels)


def auc(seen: Predictions) -> Array:
    """One-vs-rest, macro-averaged over the classes that the test set holds."""
    return macro_auc(seen.probabilities, seen.labels)


def precision(seen: Predictions) -> Array:
    """Macro-averaged over the classes that are there or predicted, as are recall and F1."""
    return _macro(jnp.diag(seen.confusion) / jnp.maximum(seen.confusion.sum(axis=0), 1), seen)


def recall(seen: Predictions) -> Array:
    """Macro-averaged."""
    return _macro(jnp.diag(seen.confusion) / jnp.maximum(seen.confusion.sum(axis=1), 1), seen)


def balanced_accuracy(seen: Predictions) -> Array:
    """The mean recall of the classes that the test set holds."""
    there = seen.confusion.sum(axis=1)
    return jnp.sum(jnp.diag(seen.confusion) / jnp.maximum(there, 1)) / jnp.sum(there > 0)


def f1(seen: Predictions) -> Array:
    """The harmonic mean of a class's precision and recall, macro-averaged."""
    both = seen.confusion.sum(axis=0) + seen.confusion.sum(axis=1)
    return _macro(2 * jnp.diag(seen.confusion) / jnp.maximum(both, 1), seen)


def calibration_error(seen: Predictions) -> Array:
    """Expected calibration error: how far confidence and accuracy are apart, over 15 bins of equal width."""
    confidence = jnp.max(seen.probabilities, axis=1)
    right = jnp.argmax(seen.probabilities, axis=1) == seen.labels
    number = jnp.clip(jnp.ceil(confidence * CALIBRATION_BINS).astype(jnp.int32) - 1, 0, CALIBRATION_BINS - 1)
    inside = number[:, None] == jnp.arange(CALIBRATION_BINS)  # not a scatter: its sums have no fixed order on a GPU
    gaps = jnp.sum(jnp.where(inside, (right - confidence)[:, None], 0), axis=0)
    return jnp.sum(jnp.abs(gaps)) / len(seen.labels)


def _macro(per_class: Array, seen: Predictions) -> Array:
    counted = (seen.confusion.sum(axis=0) > 0) | (seen.confusion.sum(axis=1) > 0)
    return jnp.sum(per_class) / jnp.sum(counted)


def confusion_matrix(predicted: Array, labels: Array, classes: int) -> Array:
    """[classes, classes] counts; rows are the true classes."""
    return jnp.zeros((classes, classes), jnp.int32).at[labels, predicted].add(1)


def metrics_of(probabilities: Array, labels: Array) -> tuple[Metrics, Array]:
    """Metrics and confusion matrix of [T, C] class probabilities against [T] labels."""
    confusion = confusion_matrix(jnp.argmax(probabilities, axis=1), labels, probabilities.shape[1])
    seen = Predictions(probabilities, labels, confusion)
    return Metrics(*(globals()[name](seen) for name in METRICS)), confusion


def batch_of(height: int, width: int) -> int:
    """How many images are tested at once."""
    return min(EVAL_BATCH, max(EVAL_PIXELS // (height * width), 1))


@partial(jax.jit, static_argnames="network")
def evaluate(network: nn.Module, model: Model, test: TestData) -> tuple[Metrics, Array]:
    """Metrics and confusion matrix of a model on the test set, in batches."""
    one = evaluate_cells(network, jax.tree.map(lambda leaf: leaf[None], model), test, axis=ONE_AT_A_TIME)
    return jax.tree.map(lambda leaf: leaf[0], one)


@partial(jax.jit, static_argnames=("network", "axis"))
def evaluate_cells(network: nn.Module, models: Model, test: TestData, *, axis: ClientAxis) -> tuple[Metrics, Array]:
    """Metrics [G] and confusion matrices [G, classes, classes] of G models; devices share the batches of all."""
    cells, count = jax.tree.leaves(models)[0].shape[0], len(test.labels)
    _, height, width = test.images.shape
    batch = min(batch_of(height, width), count)
    rows = jnp.minimum(jnp.arange(-(-count // batch) * batch), count - 1).reshape(-1, batch)
    cell, part = (grid.ravel() for grid in jnp.meshgrid(jnp.arange(cells), jnp.arange(len(rows)), indexing="ij"))

    def probabilities(item: tuple[Array, Array], models: Model, test: TestData) -> Array:
        cell, rows = item
        pixels = unpack_pixels(test.images[rows].transpose(1, 2, 0))
        model = jax.tree.map(lambda leaf: leaf[cell], models)
        logits = network.apply(model, normalise(pixels, test.mean, test.std, network.dtype), train=False)
        return jax.nn.softmax(logits.astype(jnp.float32))

    scores = axis.map(probabilities, (cell, rows[part]), models, test)
    scores = scores.reshape(cells, -1, scores.shape[-1])[:, :count]
    return axis.map(metrics_of, scores, test.labels)
