"""The losses against the paper in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rscfed_jax.local.objective import consistency, cross_entropy, sharpen
from tests import reference

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
    logits = jnp.ones((3, 2))
    value, grad = jax.value_and_grad(cross_entropy)(logits, jnp.full(3, -1), jnp.zeros(3, bool))
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
