"""The convolution in all its forms against flax.linen."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rscfed_jax.models import SimpleCNN
from rscfed_jax.models.layers import (
    CONV_FORMS,
    STRIDED_FORMS,
    Conv,
    ConvMaxPool,
    matmul_conv,
    max_of_four,
    to_blocks,
    uniform_by_fan_in,
)


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


@pytest.mark.parametrize("form", CONV_FORMS)
@pytest.mark.parametrize(("channels", "features", "size", "side"), [(3, 6, 5, 16), (6, 16, 5, 14), (2, 3, 3, 8)])
def test_conv_equals_flax_in_parameters_outputs_and_gradients(x64, form, channels, features, size, side):
    x = jax.random.normal(jax.random.key(0), (channels, side, side, 3))
    ours = ConvMaxPool(features, kernel_size=size, form=form, dtype=jnp.float64, param_dtype=jnp.float64)
    theirs = LinenConvMaxPool(features, size)
    params = ours.init(jax.random.key(1), x)["params"]
    their_shapes = jax.eval_shape(theirs.init, jax.random.key(1), x)["params"]["conv"]
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, their_shapes)

    def our_loss(params, x):
        return jnp.sum(jnp.sin(ours.apply({"params": params}, x)))

    def their_loss(params, x):
        return jnp.sum(jnp.sin(theirs.apply({"params": {"conv": params}}, x)))

    np.testing.assert_allclose(
        ours.apply({"params": params}, x), theirs.apply({"params": {"conv": params}}, x), rtol=1e-12, atol=1e-12
    )
    for a, b in zip(
        jax.tree.leaves(jax.grad(our_loss, argnums=(0, 1))(params, x)),
        jax.tree.leaves(jax.grad(their_loss, argnums=(0, 1))(params, x)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


def test_a_batch_of_clients_equals_a_loop_over_clients(x64):
    kernels = jax.random.normal(jax.random.key(0), (3, 3, 3, 4, 5))
    images = jax.random.normal(jax.random.key(1), (3, 4, 7, 7, 2))

    def loss(kernel, x):
        return jnp.sum(jnp.cos(matmul_conv(x, kernel)))

    together = jax.vmap(jax.grad(loss, argnums=(0, 1)))(kernels, images)
    for client in range(3):
        alone = jax.grad(loss, argnums=(0, 1))(kernels[client], images[client])
        for a, b in zip(together, alone, strict=True):
            np.testing.assert_allclose(a[client], b, rtol=1e-12, atol=1e-12)


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


@pytest.mark.parametrize("form", STRIDED_FORMS)
@pytest.mark.parametrize(
    ("size", "stride", "padding", "side"),
    [(3, 1, 1, 6), (3, 2, 1, 6), (3, 2, 1, 7), (1, 1, 0, 5), (1, 2, 0, 6), (1, 2, 0, 7), (7, 2, 3, 9), (3, 1, 1, 1)],
)
def test_strided_conv_equals_flax_in_parameters_outputs_and_gradients(x64, form, size, stride, padding, side):
    x = jax.random.normal(jax.random.key(0), (3, side, side + 1, 2))
    ours = Conv(4, size, stride=stride, padding=padding, form=form, dtype=jnp.float64, param_dtype=jnp.float64)
    theirs = LinenConv(4, size, stride, padding)
    params = ours.init(jax.random.key(1), x)["params"]
    their_shapes = jax.eval_shape(theirs.init, jax.random.key(1), x)["params"]["conv"]
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, their_shapes)

    def our_sines(params, x):
        return jnp.sin(ours.apply({"params": params}, x))

    def their_sines(params, x):
        return jnp.sin(theirs.apply({"params": {"conv": params}}, x))

    np.testing.assert_allclose(our_sines(params, x), their_sines(params, x), rtol=1e-12, atol=1e-12)
    for a, b in zip(
        jax.tree.leaves(jax.grad(lambda *both: our_sines(*both).sum(), argnums=(0, 1))(params, x)),
        jax.tree.leaves(jax.grad(lambda *both: their_sines(*both).sum(), argnums=(0, 1))(params, x)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_strided_conv_of_many_clients_equals_a_loop_over_clients(x64, stride):
    kernels = jax.random.normal(jax.random.key(0), (3, 3, 3, 4, 5))
    images = jax.random.normal(jax.random.key(1), (3, 4, 6, 6, 2))

    def loss(kernel, x):
        return jnp.sum(jnp.cos(STRIDED_FORMS["matmul"](x, kernel, stride=stride, padding=1)))

    together = jax.vmap(jax.grad(loss, argnums=(0, 1)))(kernels, images)
    for client in range(3):
        alone = jax.grad(loss, argnums=(0, 1))(kernels[client], images[client])
        for a, b in zip(together, alone, strict=True):
            np.testing.assert_allclose(a[client], b, rtol=1e-12, atol=1e-12)


def test_the_gradient_of_equal_maxima_goes_to_the_first():
    blocks = jnp.zeros((4, 1, 1, 1, 2)).at[2, ..., 1].set(5.0)
    grad = jax.grad(lambda b: jnp.sum(max_of_four(b) * jnp.array([1.0, 10.0])))(blocks)
    np.testing.assert_array_equal(grad[:, 0, 0, 0], [[1, 0], [0, 0], [0, 10], [0, 0]])


def test_blocks_are_in_reading_order():
    image = jnp.arange(16.0).reshape(1, 4, 4, 1)
    np.testing.assert_array_equal(to_blocks(image)[:, 0, 0, 0, 0], [0, 1, 4, 5])


@pytest.mark.parametrize(("platform", "form"), [("cpu", "matmul"), ("cuda", "plain"), ("tpu", "plain")])
def test_the_form_is_chosen_for_the_platform_that_a_program_is_lowered_for(platform, form):
    network = SimpleCNN(4)
    x = jnp.zeros((3, 16, 16, 2))
    variables = network.init(jax.random.key(0), x, train=False)
    text = jax.export.export(jax.jit(lambda v, x: network.apply(v, x, train=False)), platforms=[platform])(
        variables, x
    ).mlir_module()
    assert ("stablehlo.convolution" in text) == (form == "plain")


@pytest.mark.parametrize(("platform", "form"), [("cpu", "matmul"), ("cuda", "plain"), ("tpu", "plain")])
def test_the_strided_form_is_chosen_for_the_platform(platform, form):
    kernel, x = jnp.zeros((3, 3, 2, 4)), jnp.zeros((2, 6, 6, 2))
    convolve = jax.jit(lambda x, kernel: STRIDED_FORMS["auto"](x, kernel, stride=2, padding=1))
    text = jax.export.export(convolve, platforms=[platform])(x, kernel).mlir_module()
    assert ("stablehlo.convolution" in text) == (form == "plain")


def test_initial_values_follow_pytorchs_rule():
    values = uniform_by_fan_in(75)(jax.random.key(0), (5, 5, 3, 600))
    assert float(jnp.abs(values).max()) <= 75**-0.5
    assert float(values.std()) == pytest.approx(75**-0.5 / 3**0.5, rel=0.02)


def test_the_model_has_the_papers_parameters():
    network = SimpleCNN(10)
    shapes = jax.eval_shape(lambda: network.init(jax.random.key(0), jnp.zeros((3, 32, 32, 1)), train=False))
    kernels = {name: layer["kernel"].shape for name, layer in shapes["params"].items()}
    assert kernels == {
        "conv1": (5, 5, 3, 6),
        "conv2": (5, 5, 6, 16),
        "fc1": (400, 120),
        "fc2": (120, 84),
        "l1": (84, 84),
        "l2": (84, 256),
        "l3": (256, 10),
    }


def test_bfloat16_computes_in_bfloat16_and_keeps_float32_parameters():
    network = SimpleCNN(4, dtype=jnp.bfloat16)
    x = jax.random.normal(jax.random.key(0), (3, 16, 16, 5), jnp.bfloat16)
    variables = network.init(jax.random.key(1), x, train=False)
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype(jnp.float32)}
    half = network.apply(variables, x, train=False)
    full = SimpleCNN(4).apply(variables, x.astype(jnp.float32), train=False)
    assert half.dtype == jnp.bfloat16
    np.testing.assert_allclose(half.astype(jnp.float32), full, atol=0.02)
