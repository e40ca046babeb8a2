"""The convolution in all its forms against flax.linen."""

from functools import partial

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rscfed_jax.models.layers import (
    POOLED_FORMS,
    STRIDED_FORMS,
    Conv,
    ConvMaxPool,
    matmul_conv,
    matmul_pooled,
    pooled_by_blocks,
    pooled_by_strides,
    to_blocks,
    uniform_by_fan_in,
    window_conv,
)
from rscfed_jax.models.pooling import max_of_blocks, max_of_four, max_of_parts


def assert_same_layer(ours, theirs, x):
    """Our layer has the parameters of flax's, called `conv`, and agrees with it in outputs and gradients."""
    params = ours.init(jax.random.key(1), x)["params"]
    their_shapes = jax.eval_shape(theirs.init, jax.random.key(1), x)["params"]["conv"]
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, their_shapes)

    def results(layer, wrap):
        @jax.jit
        @partial(jax.grad, argnums=(0, 1), has_aux=True)
        def run(params, x):
            outputs = layer.apply({"params": wrap(params)}, x)
            return jnp.sin(outputs).sum(), outputs

        return run(params, x)

    expected = results(theirs, lambda params: {"conv": params})
    chex.assert_trees_all_close(results(ours, lambda params: params), expected, rtol=1e-10, atol=1e-10)


class LinenConvMaxPool(nn.Module):
    """The same with flax's own layers."""

    features: int
    size: int

    @nn.compact
    def __call__(self, x):
        """[C, H, W, B] in and out."""
        x = x.transpose(3, 1, 2, 0)
        x = nn.Conv(self.features, (self.size, self.size), padding="VALID", param_dtype=x.dtype, name="conv")(x)
        return nn.max_pool(x, (2, 2), (2, 2)).transpose(3, 1, 2, 0)


@pytest.mark.parametrize(
    ("form", "channels", "features", "size", "side"),
    [("matmul", 6, 16, 5, 14), ("matmul", 2, 3, 3, 8), ("plain", 2, 3, 3, 8), ("auto", 2, 3, 3, 8)],
)
def test_conv_equals_flax_in_parameters_outputs_and_gradients(x64, form, channels, features, size, side):
    x = jax.random.normal(jax.random.key(0), (channels, side, side, 3))
    ours = ConvMaxPool(features, kernel_size=size, form=form, dtype=jnp.float64, param_dtype=jnp.float64)
    assert_same_layer(ours, LinenConvMaxPool(features, size), x)


def assert_batch_is_a_loop(loss, kernels, images):
    """Gradients of many clients at once are those of each alone."""
    gradient = jax.grad(loss, argnums=(0, 1))
    together, alone = jax.jit(jax.vmap(gradient))(kernels, images), jax.jit(gradient)
    for client in range(len(kernels)):
        chex.assert_trees_all_close(
            jax.tree.map(lambda leaf, c=client: leaf[c], together), alone(kernels[client], images[client]), atol=1e-12
        )


@pytest.mark.parametrize("convolve", [matmul_conv, window_conv, matmul_pooled])
def test_a_batch_of_clients_equals_a_loop_over_clients(x64, convolve):
    kernels = jax.random.normal(jax.random.key(0), (3, 3, 3, 4, 5))
    images = jax.random.normal(jax.random.key(1), (3, 4, 8, 8, 2))

    def loss(kernel, x):
        return jnp.sum(jnp.cos(convolve(x, kernel)))

    assert_batch_is_a_loop(loss, kernels, images)


def test_a_pooled_convolution_has_the_same_outputs_with_and_without_gradients(x64):
    x = jax.random.normal(jax.random.key(0), (3, 12, 10, 4))
    kernel = jax.random.normal(jax.random.key(1), (5, 5, 3, 2))
    with_gradients, _ = jax.vjp(matmul_pooled, x, kernel)
    np.testing.assert_allclose(matmul_pooled(x, kernel), with_gradients, rtol=1e-12)


def test_each_form_of_a_pooled_convolution_has_the_products_meant_for_it():
    """Fewest multiplications without gradients; with them, windows of blocks that the kernel's gradient uses again."""
    x, kernel = jnp.zeros((3, 32, 32, 8)), jnp.zeros((5, 5, 3, 6))

    def shapes(function):
        equations = jax.make_jaxpr(function)(x, kernel).jaxpr.eqns
        inner = [eqn.params.get("call_jaxpr") for eqn in equations]
        found = [*equations, *(e for jaxpr in inner if jaxpr is not None for e in jaxpr.eqns)]
        inner = [eqn.params.get("call_jaxpr") for eqn in found]
        found += [e for jaxpr in inner if jaxpr is not None for e in jaxpr.eqns]
        return {eqn.outvars[0].aval.shape for eqn in found if eqn.primitive.name == "dot_general"}

    assert shapes(matmul_pooled) == {(5 * 6, 32 * 28 * 8)}
    assert (4 * 6, 14 * 14 * 8) in shapes(lambda x, kernel: jax.vjp(matmul_pooled, x, kernel)[0])


class LinenConv(nn.Module):
    """flax's own convolution, without bias."""

    features: int
    size: int
    stride: int
    padding: int

    @nn.compact
    def __call__(self, x):
        """[C, H, W, B] in and out."""
        layer = nn.Conv(
            self.features,
            (self.size, self.size),
            strides=self.stride,
            padding=self.padding,
            use_bias=False,
            param_dtype=x.dtype,
            name="conv",
        )
        return layer(x.transpose(3, 1, 2, 0)).transpose(3, 1, 2, 0)


GEOMETRIES = [
    (3, 1, 1, 6),
    (3, 2, 1, 6),
    (3, 2, 1, 7),
    (1, 1, 0, 5),
    (1, 2, 0, 6),
    (1, 2, 0, 7),
    (7, 2, 3, 9),
    (3, 1, 1, 1),
]


@pytest.mark.parametrize(
    ("form", "size", "stride", "padding", "side"),
    [*(("matmul", *geometry) for geometry in GEOMETRIES), ("plain", 3, 2, 1, 7), ("auto", 3, 2, 1, 7)],
)
def test_strided_conv_equals_flax_in_parameters_outputs_and_gradients(x64, form, size, stride, padding, side):
    x = jax.random.normal(jax.random.key(0), (3, side, side + 1, 2))
    ours = Conv(4, size, stride=stride, padding=padding, form=form, dtype=jnp.float64, param_dtype=jnp.float64)
    assert_same_layer(ours, LinenConv(4, size, stride, padding), x)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_strided_conv_of_many_clients_equals_a_loop_over_clients(x64, stride):
    kernels = jax.random.normal(jax.random.key(0), (3, 3, 3, 4, 5))
    images = jax.random.normal(jax.random.key(1), (3, 4, 6, 6, 2))

    def loss(kernel, x):
        return jnp.sum(jnp.cos(STRIDED_FORMS["matmul"](x, kernel, stride=stride, padding=1)))

    assert_batch_is_a_loop(loss, kernels, images)


def test_the_gradient_of_equal_maxima_goes_to_the_first():
    blocks = jnp.zeros((4, 1, 1, 1, 2)).at[2, ..., 1].set(5.0)
    grad = jax.grad(lambda b: jnp.sum(max_of_four(b) * jnp.array([1.0, 10.0])))(blocks)
    np.testing.assert_array_equal(grad[:, 0, 0, 0], [[1, 0], [0, 0], [0, 10], [0, 0]])


def test_all_ways_to_pool_agree_to_the_bit_in_values_and_gradients():
    x = jax.random.randint(jax.random.key(0), (3, 6, 8, 5), 0, 3).astype(jnp.float32)  # with many equal maxima
    weights = jax.random.normal(jax.random.key(1), (3, 3, 4, 5))

    def results(pool):
        return jax.value_and_grad(lambda x: jnp.sum(pool(x) * weights))(x)

    expected = results(lambda x: max_of_four(to_blocks(x)))
    chex.assert_trees_all_equal(results(max_of_blocks), expected)
    chex.assert_trees_all_equal(results(lambda x: max_of_parts(*to_blocks(x))), expected)


@pytest.mark.parametrize("size", [3, 5])
def test_convolutions_with_a_stride_pool_as_blocks_do(x64, size):
    x = jax.random.normal(jax.random.key(0), (2, 10 + size - 1, 8 + size - 1, 3))
    kernel = jax.random.normal(jax.random.key(1), (size, size, 2, 4))

    def results(pooled):
        return pooled(x, kernel), jax.grad(lambda *given: jnp.sum(jnp.sin(pooled(*given))), argnums=(0, 1))(x, kernel)

    chex.assert_trees_all_close(results(pooled_by_strides), results(pooled_by_blocks), rtol=1e-10, atol=1e-10)


def test_blocks_are_in_reading_order():
    image = jnp.arange(16.0).reshape(1, 4, 4, 1)
    np.testing.assert_array_equal(to_blocks(image)[:, 0, 0, 0, 0], [0, 1, 4, 5])


@pytest.mark.parametrize(("platform", "form"), [("cpu", "matmul"), ("cuda", "plain"), ("tpu", "plain")])
def test_the_form_is_chosen_for_the_platform_that_a_program_is_lowered_for(platform, form):
    kernel, x = jnp.zeros((3, 3, 2, 4)), jnp.zeros((2, 6, 6, 2))
    strided = partial(STRIDED_FORMS["auto"], stride=2, padding=1)
    for convolve in (POOLED_FORMS["auto"], strided):
        text = jax.export.export(jax.jit(convolve), platforms=[platform])(x, kernel).mlir_module()
        assert ("stablehlo.convolution" in text) == (form == "plain")


def test_initial_values_follow_pytorchs_rule():
    values = uniform_by_fan_in(75)(jax.random.key(0), (5, 5, 3, 600))
    assert float(jnp.abs(values).max()) <= 75**-0.5
    assert float(values.std()) == pytest.approx(75**-0.5 / 3**0.5, rel=0.02)
