"""SAGE's labels and loss against its source."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rscfed_jax.config import Config, Hyper
from rscfed_jax.methods.sage import loss, mixed_labels
from tests.helpers import Echo, step_of
from tests.methods import reference


def draw(seed, batch=7):
    return np.random.default_rng(seed).normal(size=(batch, 5)) * 4


@given(st.integers(0, 10**6))
def test_labels_are_mixed_by_how_far_confidences_are_apart(seed):
    with jax.enable_x64(True):
        local, server = draw(seed), draw(seed + 1)
        targets, sure = mixed_labels(jnp.asarray(local), jnp.asarray(server), threshold=0.95, half=0.05)
        for sample in range(7):
            target, counts = reference.sage_target(local[sample], server[sample])
            np.testing.assert_allclose(targets[sample], target, atol=1e-12)
            assert bool(sure[sample]) == counts
        np.testing.assert_allclose(targets.sum(axis=1), 1, atol=1e-12)


def test_both_labels_count_half_where_confidences_differ_by_five_hundredths():
    logits = jnp.log(jnp.array([[0.96, 0.04], [0.09, 0.91]]))
    targets, _ = mixed_labels(logits[:1], logits[1:], threshold=0.95, half=0.05)
    np.testing.assert_allclose(targets, [[0.5, 0.5]], atol=1e-5)


def test_the_loss_matches_the_source(x64):
    hyper = jax.tree.map(jnp.float64, Hyper.of(Config(method="sage")))
    labels, bias = np.array([1, -1, -1, -1, -1, -1, -1]), np.linspace(0, 2, 5)
    model, step = step_of({"weak": draw(0), "strong": draw(1)}, labels, bias=bias)
    total, told = loss(Echo(), model, step, hyper)
    expected = 0.0
    for sample in range(1, 7):
        target, counts = reference.sage_target(draw(0)[sample], draw(0)[sample] + bias)
        expected += counts * reference.divergence(target, draw(1)[sample])
    labeled = reference.cross_entropies(draw(0)[:1], labels[:1])[0]
    np.testing.assert_allclose(told.losses.consistency, expected / 6, rtol=1e-10)
    np.testing.assert_allclose(total, labeled + expected / 6, rtol=1e-10)
    assert 0 < int(told.pseudo.keep[1:].sum()) <= 6
