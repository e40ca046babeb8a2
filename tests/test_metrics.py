"""Metrics against scikit-learn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from rscfed_jax.metrics import EVAL_BATCH, evaluate, macro_auc, metrics_of
from tests.conftest import Tiny, ragged_federation

compute = jax.jit(metrics_of)


def sklearn_metrics(probabilities, labels):
    """What scikit-learn says, over the classes that it can say something about."""
    predicted = probabilities.argmax(axis=1)
    aucs = [
        sk.roc_auc_score(labels == c, probabilities[:, c])
        for c in range(probabilities.shape[1])
        if 0 < (labels == c).sum() < len(labels)
    ]
    common = {"average": "macro", "zero_division": 0}
    return (
        sk.accuracy_score(labels, predicted),
        np.mean(aucs) if aucs else np.nan,
        sk.precision_score(labels, predicted, **common),
        sk.recall_score(labels, predicted, **common),
    )


def cases(seed, kind):
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.ones(4), 40).astype(np.float32)
    labels = rng.integers(0, 4, 40)
    if kind == "tied":
        probabilities = np.round(probabilities, 1)
    elif kind == "all equal":
        probabilities[:] = 0.25
    elif kind == "class without samples":
        labels = rng.integers(0, 3, 40)
    elif kind == "one class":
        labels[:] = 2
    elif kind == "one prediction":
        probabilities[:, 1] = 2.0
    elif kind == "perfect":
        probabilities = np.eye(4, dtype=np.float32)[labels]
    return probabilities, labels


@pytest.mark.parametrize(
    "kind", ["random", "tied", "all equal", "class without samples", "one class", "one prediction", "perfect"]
)
@given(seed=st.integers(0, 10**6))
def test_metrics_equal_scikit_learns(kind, seed):
    probabilities, labels = cases(seed, kind)
    ours, confusion = compute(probabilities, labels)
    np.testing.assert_allclose(ours, sklearn_metrics(probabilities, labels), atol=1e-6)
    np.testing.assert_array_equal(confusion, sk.confusion_matrix(labels, probabilities.argmax(axis=1), labels=range(4)))


def test_macro_auc_is_scikit_learns_one_vs_rest():
    probabilities, labels = cases(3, "random")
    probabilities = probabilities.astype(np.float64)
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    expected = sk.roc_auc_score(labels, probabilities, multi_class="ovr", average="macro")
    assert float(macro_auc(jnp.asarray(probabilities), jnp.asarray(labels))) == pytest.approx(expected, abs=1e-6)


def test_auc_of_many_samples_keeps_its_digits():
    """26,000 samples: a sum of ranks in float32 would be wrong in the sixth digit."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 26_032)
    probabilities = rng.random((26_032, 10)).astype(np.float32)
    probabilities[np.arange(26_032), labels] += 0.3
    ours, _ = compute(probabilities, labels)
    np.testing.assert_allclose(ours, sklearn_metrics(probabilities, labels), atol=1e-6)


@pytest.mark.parametrize("extra", [0, 1])
def test_evaluation_in_batches_equals_one_batch(extra):
    """Also where the last batch is short."""
    tiny = Tiny(ragged_federation())
    network = tiny.local.network
    rows = np.arange(EVAL_BATCH + extra) % len(tiny.test.labels)
    test = tiny.test._replace(images=tiny.test.images[rows], labels=tiny.test.labels[rows])
    model = tiny.state(tiny.algorithm()).model
    ours, confusion = evaluate(network, model, test)
    words = np.asarray(test.images)
    pixels = np.stack([(words >> shift) & 255 for shift in (0, 8, 16)]).transpose(0, 2, 3, 1)
    normal = (pixels - np.asarray(test.mean).reshape(3, 1, 1, 1)) / np.asarray(test.std).reshape(3, 1, 1, 1)
    probabilities = jax.nn.softmax(network.apply(model, jnp.asarray(normal, jnp.float32), train=False))
    np.testing.assert_allclose(ours, sklearn_metrics(np.asarray(probabilities), np.asarray(test.labels)), atol=1e-6)
    assert int(confusion.sum()) == len(rows)
