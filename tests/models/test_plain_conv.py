"""XLA's convolution with the kernel gradient that is written out for `vmap`."""

import re
from functools import partial

import chex
import jax
import jax.numpy as jnp
import pytest

from rscfed_jax.models.plain_conv import convolve, kernel_gradients, plain_conv

GEOMETRIES = [  # kernel size, stride, padding, side of the image
    (5, 1, 0, 9),
    (3, 1, 1, 6),
    (3, 2, 1, 7),
    (7, 2, 3, 11),
    (1, 2, 0, 6),
]


def loss_of(conv, stride, padding):
    return lambda x, kernel: jnp.sum(jnp.sin(conv(x, kernel, stride, padding)))


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize(("size", "stride", "padding", "side"), GEOMETRIES)
def test_gradients_of_many_clients_are_those_of_the_bare_convolution(x64, size, stride, padding, side, clients):
    x = jax.random.normal(jax.random.key(0), (clients, 2, side, side + 1, 3))
    kernels = jax.random.normal(jax.random.key(1), (clients, size, size, 2, 4))

    def gradients(conv):
        return jax.jit(jax.vmap(jax.grad(loss_of(conv, stride, padding), argnums=(0, 1))))(x, kernels)

    chex.assert_trees_all_close(gradients(plain_conv), gradients(convolve), rtol=1e-10, atol=1e-10)


def test_vmap_inside_vmap_and_what_it_shares(x64):
    x = jax.random.normal(jax.random.key(0), (3, 2, 6, 6, 2))
    kernels = jax.random.normal(jax.random.key(1), (4, 3, 3, 2, 5))

    def gradients(conv):
        both = jax.grad(loss_of(conv, 1, 1), argnums=(0, 1))
        return jax.jit(jax.vmap(jax.vmap(both, in_axes=(0, None)), in_axes=(None, 0)))(x, kernels)

    chex.assert_trees_all_close(gradients(plain_conv), gradients(convolve), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("size", "stride", "padding", "side"), GEOMETRIES)
def test_the_kernels_gradient_is_a_backward_filter_convolution_for_gpus(size, stride, padding, side):
    """Groups of the batch mark it; in groups of features a GPU would take the image for the window."""
    x, kernels = jnp.zeros((3, 2, side, side, 4)), jnp.zeros((3, size, size, 2, 6))
    gradient = jax.vmap(jax.grad(loss_of(plain_conv, stride, padding), argnums=1))
    text = jax.export.export(jax.jit(gradient), platforms=["cuda"])(x, kernels).mlir_module()
    groups = re.findall(r"batch_group_count = (\d+) : i64, feature_group_count = (\d+)", text)
    assert groups == [("1", "3"), ("3", "1")]  # the convolution, and its kernels' gradient


def test_on_tpus_it_is_what_vmap_makes_of_it():
    x, kernels = jnp.zeros((3, 2, 9, 9, 4)), jnp.zeros((3, 5, 5, 2, 6))
    gradient = jax.vmap(jax.grad(loss_of(plain_conv, 1, 0), argnums=1))
    text = jax.export.export(jax.jit(gradient), platforms=["tpu"])(x, kernels).mlir_module()
    assert re.findall(r"batch_group_count = (\d+)", text) == ["1", "1"]


@pytest.mark.parametrize("clients", [1, 3])
def test_both_ways_agree(x64, clients):
    x = jax.random.normal(jax.random.key(0), (clients, 2, 7, 8, 3))
    kernels = jax.random.normal(jax.random.key(1), (clients, 3, 3, 2, 4))
    grad = jax.random.normal(jax.random.key(2), (clients, 4, 4, 4, 3))
    found = kernel_gradients(3, 2, 1)(x, grad)
    expected = jax.vmap(lambda x, kernel, grad: jax.vjp(lambda k: convolve(x, k, 2, 1), kernel)[1](grad)[0])
    chex.assert_trees_all_close(found, expected(x, kernels, grad), rtol=1e-10, atol=1e-10)


def test_the_bare_convolution_would_need_groups_of_features():
    """Why there is a module for it."""
    x, kernels = jnp.zeros((3, 2, 9, 9, 4)), jnp.zeros((3, 5, 5, 2, 6))
    gradient = jax.vmap(jax.grad(loss_of(partial(convolve), 1, 0), argnums=1))
    text = jax.export.export(jax.jit(gradient), platforms=["cuda"])(x, kernels).mlir_module()
    assert re.findall(r"feature_group_count = (\d+)", text) == ["3", "3"]
