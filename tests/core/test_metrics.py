"""Metrics against scikit-learn, and the calibration error against a plain loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from rscfed_jax.config import registry
from rscfed_jax.core import metrics
from rscfed_jax.core.client_axis import ClientAxis
from rscfed_jax.core.metrics import EVAL_BATCH, LOWER_IS_BETTER, METRICS, Metrics, evaluate, evaluate_cells, metrics_of
from tests.helpers import Tiny

compute = jax.jit(metrics_of)


def calibration_error(probabilities, labels):
    """Fifteen bins, each open at its lower end: in each, the gap between mean confidence and accuracy."""
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    total = 0.0
    for number in range(15):
        inside = (confidence > np.float32(number / 15)) & (confidence <= np.float32((number + 1) / 15))
        if inside.any():
            total += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    return total


def expected_metrics(probabilities, labels):
    """What scikit-learn says, over the classes that it can say something about."""
    predicted = probabilities.argmax(axis=1)
    aucs = [
        sk.roc_auc_score(labels == c, probabilities[:, c])
        for c in range(probabilities.shape[1])
        if 0 < (labels == c).sum() < len(labels)
    ]
    common = {"average": "macro", "zero_division": 0}
    there = np.unique(labels)
    return Metrics(
        accuracy=sk.accuracy_score(labels, predicted),
        auc=np.mean(aucs) if aucs else np.nan,
        precision=sk.precision_score(labels, predicted, **common),
        recall=sk.recall_score(labels, predicted, **common),
        # Its balanced_accuracy_score, which warns of classes that are predicted and not there.
        balanced_accuracy=sk.recall_score(labels, predicted, labels=there, **common),
        f1=sk.f1_score(labels, predicted, **common),
        calibration_error=calibration_error(probabilities, labels),
    )


def cases(seed, kind):
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.ones(4), 40).astype(np.float32)
    labels = rng.integers(0, 4, 40)
    if kind == "tied":
        probabilities = rng.permuted(np.tile(np.float32([0.4, 0.4, 0.1, 0.1]), (40, 1)), axis=1)
    elif kind == "on the border of two bins":
        probabilities = np.float32([[0.4, 0.3, 0.2, 0.1], [0.36, 0.34, 0.2, 0.1]])[rng.integers(0, 2, 40)]
    elif kind == "all equal":
        probabilities[:] = 0.25
    elif kind == "class without samples":
        labels = rng.integers(0, 3, 40)
    elif kind == "one class":
        labels[:] = 2
    elif kind == "one prediction":
        probabilities = np.sort(probabilities, axis=1)[:, ::-1]
    elif kind == "one sample":
        probabilities, labels = probabilities[:1], labels[:1]
    elif kind == "perfect":
        probabilities = np.eye(4, dtype=np.float32)[labels]
    return probabilities, labels


KINDS = [
    "random",
    "tied",
    "on the border of two bins",
    "all equal",
    "class without samples",
    "one class",
    "one prediction",
    "one sample",
    "perfect",
]


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 10**6))
def test_every_metric_is_scikit_learns(kind, seed):
    probabilities, labels = cases(seed, kind)
    ours, confusion = compute(probabilities, labels)
    expected = expected_metrics(probabilities, labels)
    for name in METRICS:
        np.testing.assert_allclose(getattr(ours, name), getattr(expected, name), atol=1e-6, err_msg=name)
    np.testing.assert_array_equal(confusion, sk.confusion_matrix(labels, probabilities.argmax(axis=1), labels=range(4)))


def test_two_averages_are_those_that_scikit_learn_names():
    probabilities, labels = cases(3, "random")
    ours, _ = compute(probabilities, labels)
    probabilities = probabilities.astype(np.float64) / probabilities.sum(axis=1, keepdims=True, dtype=np.float64)
    auc = sk.roc_auc_score(labels, probabilities, multi_class="ovr", average="macro")
    balanced = sk.balanced_accuracy_score(labels, probabilities.argmax(axis=1))
    np.testing.assert_allclose([ours.auc, ours.balanced_accuracy], [auc, balanced], atol=1e-6)


def test_every_metric_of_the_list_has_a_function_and_the_list_is_known_without_jax():
    assert registry.metrics() == METRICS
    assert registry.lower_is_better() == LOWER_IS_BETTER
    assert set(LOWER_IS_BETTER) < set(METRICS)
    assert Metrics._fields == tuple(METRICS)
    assert all(callable(getattr(metrics, name)) for name in METRICS)


def test_metrics_of_many_samples_keep_their_digits():
    """26,000 samples: a sum of ranks in float32 would be wrong in the sixth digit."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 26_032)
    probabilities = rng.random((26_032, 10)).astype(np.float32)
    probabilities[np.arange(26_032), labels] += 0.3
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(compute(probabilities, labels)[0], expected_metrics(probabilities, labels), atol=1e-6)


@pytest.fixture(scope="module")
def tested():
    """A network, two models, and a test set whose last batch is short."""
    tiny = Tiny()
    rows = np.arange(EVAL_BATCH + 1) % len(tiny.test.labels)
    test = tiny.test._replace(images=tiny.test.images[rows], labels=tiny.test.labels[rows])
    model = tiny.state(tiny.algorithm()).model
    return tiny.network, jax.tree.map(lambda leaf: jnp.stack([leaf, leaf[::-1]]), model), test


def test_evaluation_in_batches_equals_one_batch(tested):
    network, models, test = tested
    model = jax.tree.map(lambda leaf: leaf[0], models)
    ours, confusion = evaluate(network, model, test)
    words = np.asarray(test.images)
    pixels = np.stack([(words >> shift) & 255 for shift in (0, 8, 16)]).transpose(0, 2, 3, 1)
    normal = (pixels - np.asarray(test.mean).reshape(3, 1, 1, 1)) / np.asarray(test.std).reshape(3, 1, 1, 1)
    probabilities = jax.jit(lambda images: jax.nn.softmax(network.apply(model, images, train=False)))(normal)
    expected = expected_metrics(np.asarray(probabilities), np.asarray(test.labels))
    np.testing.assert_allclose(ours, expected, atol=1e-6)
    assert int(confusion.sum()) == EVAL_BATCH + 1


def test_devices_that_share_the_models_of_a_grid_find_what_one_finds(tested):
    network, models, test = tested
    axis = ClientAxis.create(1, 4, 2)
    together, confusions = evaluate_cells(network, models, test, axis=axis)
    for cell in range(2):
        alone, confusion = evaluate(network, jax.tree.map(lambda leaf, c=cell: leaf[c], models), test)
        np.testing.assert_allclose([values[cell] for values in together], alone, atol=1e-6)
        np.testing.assert_array_equal(confusions[cell], confusion)
    assert (confusions[0] != confusions[1]).any()
