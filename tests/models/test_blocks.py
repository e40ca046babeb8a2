"""Batch-norm by PyTorch's rules, and max-pooling."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rscfed_jax.models.blocks import BatchNorm, max_pool


def normalised(x, valid):
    """PyTorch's batch-norm of [C, H, W, B] in a first step: the output, and the running mean and variance."""
    seen = x[..., valid].reshape(len(x), -1)
    mean, var = seen.mean(axis=1), seen.var(axis=1)
    out = (x - mean[:, None, None, None]) / np.sqrt(var + 1e-5)[:, None, None, None]
    unbiased = var * seen.shape[1] / max(seen.shape[1] - 1, 1)
    return out, 0.1 * mean, 0.9 + 0.1 * unbiased


@pytest.mark.parametrize("valid", [[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 1, 0]])
def test_batch_norm_counts_valid_samples_only_and_keeps_the_unbiased_variance(x64, valid):
    valid = np.array(valid, bool)
    x = np.random.default_rng(0).normal(2, 3, (5, 2, 3, 4))
    norm = BatchNorm(dtype=jnp.float64, param_dtype=jnp.float64)
    variables = norm.init(jax.random.key(0), x, train=True)
    np.testing.assert_array_equal(variables["batch_stats"]["mean"], 0)
    out, new = norm.apply(variables, x, train=True, valid=jnp.array(valid), mutable=["batch_stats"])
    expected, mean, var = normalised(x, valid)
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(new["batch_stats"]["mean"], mean, rtol=1e-12)
    np.testing.assert_allclose(new["batch_stats"]["var"], var, rtol=1e-12)


@pytest.mark.parametrize("valid", [[True, False], [False, False]])
def test_a_single_value_or_none_gives_finite_statistics_and_gradients(valid):
    norm = BatchNorm()
    x = jnp.arange(6.0).reshape(3, 1, 1, 2)
    variables = norm.init(jax.random.key(0), x, train=True)

    def loss(x):
        out, new = norm.apply(variables, x, train=True, valid=jnp.array(valid), mutable=["batch_stats"])
        return jnp.sum(jnp.sin(out)), new

    grad, new = jax.grad(loss, has_aux=True)(x)
    chex.assert_tree_all_finite((grad, new))


@pytest.mark.parametrize("side", [5, 6])
def test_max_pool_takes_the_maximum_of_three_by_three(side):
    x = np.random.default_rng(0).normal(size=(2, side, side, 3)).astype(np.float32) - 5
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    places = range(0, side, 2)
    expected = [[padded[:, i : i + 3, j : j + 3].max(axis=(1, 2)) for j in places] for i in places]
    np.testing.assert_array_equal(max_pool(x), np.array(expected).transpose(2, 0, 1, 3))
