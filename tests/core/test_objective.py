"""The losses against the paper in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rscfed_jax.config import Config, Hyper
from rscfed_jax.core.client import log_shares
from rscfed_jax.core.objective import (
    Batch,
    Step,
    consistency,
    cross_entropies,
    cross_entropies_by_comparison,
    cross_entropy,
    features_and_logits,
    labeled_loss,
    mean_teacher_loss,
    sharpen,
    teacher_logits,
)
from tests import reference
from tests.helpers import Echo, Lookup, TinyNetwork, step_of

seeds = st.integers(0, 10**6)


@given(seed=seeds, tau=st.floats(0.1, 3.0))
def test_sharpening_matches_the_paper(seed, tau):
    logits = np.random.default_rng(seed).normal(size=(3, 5)) * 3
    with jax.enable_x64(True):
        ours = np.asarray(sharpen(jnp.asarray(logits), tau))
    np.testing.assert_allclose(ours, [reference.sharpen(reference.softmax(z), tau) for z in logits], rtol=1e-9)


@given(seed=seeds, labeled=st.integers(1, 6))
def test_cross_entropy_is_the_mean_over_the_samples_really_there(seed, labeled):
    rng = np.random.default_rng(seed)
    logits, labels = rng.normal(size=(6, 4)) * 3, rng.integers(0, 4, 6)
    mask = np.arange(6) < labeled
    with jax.enable_x64(True):
        ours = float(cross_entropy(jnp.asarray(logits), jnp.asarray(np.where(mask, labels, -1)), jnp.asarray(mask)))
    assert ours == pytest.approx(reference.cross_entropy(logits[:labeled], labels[:labeled]), rel=1e-9)


def test_cross_entropy_of_nothing_is_zero_and_has_no_gradient():
    value, grad = jax.value_and_grad(cross_entropy)(jnp.ones((3, 2)), jnp.full(3, -1), jnp.zeros(3, bool))
    assert value == 0
    np.testing.assert_array_equal(grad, 0)


@given(seed=seeds, present=st.integers(1, 6), tau=st.sampled_from([0.5, 1.0]))
def test_consistency_is_a_sum_over_the_nominal_batch_size(seed, present, tau):
    rng = np.random.default_rng(seed)
    student, teacher = rng.normal(size=(2, 6, 4)) * 3
    mask = np.arange(6) < present
    with jax.enable_x64(True):
        ours = float(consistency(jnp.asarray(student), jnp.asarray(teacher), jnp.asarray(mask), tau))
    assert ours == pytest.approx(reference.consistency(student[:present], teacher[:present], tau, 6), rel=1e-9)


def test_no_gradient_reaches_the_teacher():
    student, teacher = jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 1.0]])
    grads = jax.grad(consistency, argnums=(0, 1))(student, teacher, jnp.ones(1, bool), 0.5)
    assert jnp.abs(grads[0]).sum() > 0
    np.testing.assert_array_equal(grads[1], 0)


def test_each_sample_of_a_partly_labeled_batch_counts_in_its_own_part_of_the_loss(x64):
    """Samples 0 and 1 have labels, 2 and 3 have none, 4 and 5 only fill the batch."""
    student, teacher = np.random.default_rng(0).normal(size=(2, 6, 4)) * 3
    labels, valid = np.array([3, 1, -1, -1, 2, -1]), np.arange(6) < 4
    model = {"params": jnp.stack([student, teacher])}
    batch = Batch({"student": 0, "teacher": 1}, jnp.asarray(labels), jnp.asarray(valid))
    step = Step(None, batch, model, model, None, None, None, None)
    hyper = Hyper.of(Config(lambda_u=0.3, tau=0.7))
    loss, told = mean_teacher_loss(Lookup(), model, step, hyper)
    labeled = reference.cross_entropy(student[:2], labels[:2])
    unlabeled = reference.consistency(student[2:4], teacher[2:4], 0.7, 6)
    np.testing.assert_allclose([loss, *told.losses], [labeled + 0.3 * unlabeled, labeled, unlabeled], rtol=1e-12)
    alone, told = mean_teacher_loss(Lookup(), model, step._replace(teacher=None), hyper)
    np.testing.assert_allclose([alone, *told.losses], [labeled, labeled, 0], rtol=1e-12)


def test_features_are_what_the_classifier_sees_in_evaluation():
    network = TinyNetwork()
    images = jax.random.normal(jax.random.key(0), (3, 16, 16, 5))
    model = network.init(jax.random.key(1), images, train=False)
    features, logits = features_and_logits(network, model, images)
    assert features.shape == (5, 8)
    classifier = model["params"]["l3"]
    np.testing.assert_allclose(features @ classifier["kernel"] + classifier["bias"], logits, atol=1e-5)
    np.testing.assert_array_equal(logits, teacher_logits(network, model, images))


def test_a_network_that_gives_no_features_is_named():
    with pytest.raises(ValueError, match="the network Lookup gives no features"):
        features_and_logits(Lookup(), {"params": jnp.zeros((1, 2, 3))}, 0)


def test_balanced_softmax_adds_the_log_shares_of_the_clients_classes(x64):
    logits, labels = np.random.default_rng(1).normal(size=(6, 5)), np.array([0, 3, -1, 4, 1, 2])
    counts = np.array([15, 292, 986, 0, 63])
    model, step = step_of({"student": logits}, labels, teacher=False, prior=log_shares(jnp.asarray(counts)))
    seen = labels >= 0
    shifted = logits + np.log(counts / counts.sum() + 1e-12)
    np.testing.assert_allclose(
        labeled_loss(jnp.asarray(logits), step), reference.cross_entropy(shifted[seen], labels[seen]), rtol=1e-10
    )
    hyper = Hyper.of(Config())
    np.testing.assert_allclose(
        mean_teacher_loss(Echo(), model, step, hyper)[0], labeled_loss(jnp.asarray(logits), step), rtol=1e-12
    )
    plain = step._replace(prior=None)
    np.testing.assert_allclose(
        labeled_loss(jnp.asarray(logits), plain), reference.cross_entropy(logits[seen], labels[seen]), rtol=1e-10
    )


def test_cross_entropies_by_comparison_are_those_by_lookup_with_the_same_gradient(x64):
    logits = 5 * jax.random.normal(jax.random.key(0), (6, 4))
    labels = jnp.array([0, 3, 1, 1, 2, 0])
    by_hand = np.log(np.exp(logits).sum(axis=1)) - np.asarray(logits)[np.arange(6), labels]
    np.testing.assert_allclose(cross_entropies_by_comparison(logits, labels), by_hand, rtol=1e-12, atol=1e-14)
    weights = jnp.arange(6.0)
    ours, theirs = (
        jax.grad(lambda logits, form=form: jnp.sum(form(logits, labels) * weights))(logits)
        for form in (cross_entropies_by_comparison, cross_entropies)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)
