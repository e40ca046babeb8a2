"""Convolutions of a client, with the parameters and results of `flax.linen.Conv`.

Under `vmap` over clients a plain convolution becomes a grouped one, which is slow on CPUs. Here it is matrix products
instead. Activations have the layout [channels, height, width, batch].

Where a max-pool follows and gradients are asked for, outputs are computed in blocks of 2x2 neighbours, side by side as
channels: a 5x5 kernel over C channels becomes a 3x3 kernel from 4C to 4O channels on a quarter of the positions. That
makes few, large products out of many thin ones, and max-pooling the maximum of four adjacent arrays.
"""

import math
from collections.abc import Callable
from functools import partial, reduce
from operator import add

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from rscfed_jax.models.plain_conv import plain_conv
from rscfed_jax.models.pooling import max_of_blocks, max_of_four, max_of_parts


def uniform_by_fan_in(fan_in: int) -> Callable[..., Array]:
    """PyTorch's default initialiser of kernels and biases: uniform within 1/sqrt(fan_in)."""
    bound = 1 / math.sqrt(fan_in)

    def initialise(key: Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return initialise


def dense(features: int, fan_in: int, *, dtype: DTypeLike, param_dtype: DTypeLike, name: str) -> nn.Dense:
    """`flax.linen.Dense` with PyTorch's initial values."""
    initialise = uniform_by_fan_in(fan_in)
    return nn.Dense(
        features, dtype=dtype, param_dtype=param_dtype, kernel_init=initialise, bias_init=initialise, name=name
    )


class ConvMaxPool(nn.Module):
    """A convolution without padding, then 2x2 max-pooling; parameters as in `flax.linen.Conv`."""

    features: int
    kernel_size: int = 5
    form: str = "auto"
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """[C, H, W, B] to [features, (H - k + 1) / 2, (W - k + 1) / 2, B]; k is odd, H and W are even."""
        channels = x.shape[0]
        initialise = uniform_by_fan_in(self.kernel_size**2 * channels)
        shape = (self.kernel_size, self.kernel_size, channels, self.features)
        kernel = self.param("kernel", initialise, shape, self.param_dtype)
        bias = self.param("bias", initialise, (self.features,), self.param_dtype)
        pooled = POOLED_FORMS[self.form](x.astype(self.dtype), kernel.astype(self.dtype))
        return pooled + bias.astype(self.dtype)[:, None, None, None]


class Conv(nn.Module):
    """A convolution without bias; parameters and results as in `flax.linen.Conv`.

    Initial values are normal with variance 2 / (outputs that an input reaches): He's rule by fan-out.
    """

    features: int
    kernel_size: int
    stride: int = 1
    padding: int = 0
    form: str = "auto"
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """[C, H, W, B] to [features, H', W', B]."""
        initialise = nn.initializers.variance_scaling(2.0, "fan_out", "normal")
        shape = (self.kernel_size, self.kernel_size, x.shape[0], self.features)
        kernel = self.param("kernel", initialise, shape, self.param_dtype)
        convolve = STRIDED_FORMS[self.form]
        return convolve(x.astype(self.dtype), kernel.astype(self.dtype), stride=self.stride, padding=self.padding)


def plain_pooled(x: Array, kernel: Array) -> Array:
    """[O, H'/2, W'/2, B] maxima over 2x2 outputs of XLA's own convolution."""
    return jax.lax.platform_dependent(x, kernel, tpu=pooled_by_strides, default=pooled_by_blocks)


def pooled_by_blocks(x: Array, kernel: Array) -> Array:
    """One convolution, and the maximum over its blocks of 2x2."""
    return max_of_blocks(plain_conv(x, kernel))


def pooled_by_strides(x: Array, kernel: Array) -> Array:
    """A convolution with stride 2 for each of the four neighbours, and the maximum of the four.

    Spreading the gradient of a block over its neighbours is what a TPU takes longest for, and here there are no blocks:
    2.0 instead of 2.5 million cycles for a step of 15 clients, by the compiler's estimate for a v5e.
    """
    size = kernel.shape[0]
    height, width = x.shape[1] - size, x.shape[2] - size  # of the last window of each kind
    parts = [x[:, i : i + height + size - 1, j : j + width + size - 1] for i in range(2) for j in range(2)]
    return max_of_parts(*(plain_conv(part, kernel, 2) for part in parts))


@jax.custom_vjp
def matmul_pooled(x: Array, kernel: Array) -> Array:
    """[O, H'/2, W'/2, B] maxima over 2x2 outputs that matrix products compute.

    Without gradients, as for a teacher, thin products with the least arithmetic are fastest. With them blocks are: the
    product of the kernel's gradient would be too thin without.
    """
    return max_of_blocks(matmul_conv(x, kernel))


def pooled_in_blocks(x: Array, kernel: Array) -> Array:
    """`matmul_pooled` by one product from blocks to blocks, which has quick gradients."""
    channels, height, width, batch = x.shape
    deep = to_blocks(x).reshape(4 * channels, height // 2, width // 2, batch)
    out = window_conv(deep, to_block_kernel(kernel))
    return max_of_four(out.reshape(4, kernel.shape[3], *out.shape[1:]))


def _pooled_forward(x: Array, kernel: Array) -> tuple[Array, Callable[[Array], tuple[Array, Array]]]:
    return jax.vjp(pooled_in_blocks, x, kernel)


def _pooled_backward(pull_back: Callable[[Array], tuple[Array, Array]], grad: Array) -> tuple[Array, Array]:
    return pull_back(grad)


matmul_pooled.defvjp(_pooled_forward, _pooled_backward)


def auto_pooled(x: Array, kernel: Array) -> Array:
    """The form that suits the platform, chosen when the program is lowered for it."""
    return jax.lax.platform_dependent(x, kernel, cpu=matmul_pooled, default=plain_pooled)


POOLED_FORMS: dict[str, Callable[[Array, Array], Array]] = {
    "auto": auto_pooled,
    "matmul": matmul_pooled,
    "plain": plain_pooled,
}


def plain_strided(x: Array, kernel: Array, *, stride: int, padding: int) -> Array:
    """[O, H', W', B] outputs of XLA's own convolution."""
    return plain_conv(x, kernel, stride, padding)


def matmul_strided(x: Array, kernel: Array, *, stride: int, padding: int) -> Array:
    """[O, H', W', B] outputs by matrix products.

    Without a stride, one product for all kernel rows and a shifted sum. With one, what each output sees is gathered:
    the outputs are so few that it takes little memory.
    """
    x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    if stride == 1:
        return matmul_conv(x, kernel)
    size, _, channels, features = kernel.shape
    height, width = ((side - size) // stride + 1 for side in x.shape[1:3])
    seen = jnp.concatenate(
        [
            x[:, i : i + stride * (height - 1) + 1 : stride, j : j + stride * (width - 1) + 1 : stride]
            for i in range(size)
            for j in range(size)
        ]
    )
    out = kernel.reshape(-1, features).T @ seen.reshape(size * size * channels, -1)
    return out.reshape(features, height, width, -1)


def auto_strided(x: Array, kernel: Array, *, stride: int, padding: int) -> Array:
    """The form that suits the platform, chosen when the program is lowered for it.

    XLA's own convolution is quick on CPU, but not inside a loop, where training has it: there a step of ResNet-18 took
    15.1 s, and 0.4 s by products (32 pixels, batch 4, one core).
    """
    return jax.lax.platform_dependent(
        x,
        kernel,
        cpu=partial(matmul_strided, stride=stride, padding=padding),
        default=partial(plain_strided, stride=stride, padding=padding),
    )


STRIDED_FORMS: dict[str, Callable[..., Array]] = {
    "auto": auto_strided,
    "matmul": matmul_strided,
    "plain": plain_strided,
}


def to_blocks(x: Array) -> Array:
    """[C, H, W, B] as [4, C, H/2, W/2, B]: the four neighbours of each 2x2 block, in reading order."""
    channels, height, width, batch = x.shape
    blocks = x.reshape(channels, height // 2, 2, width // 2, 2, batch)
    return blocks.transpose(2, 4, 0, 1, 3, 5).reshape(4, channels, height // 2, width // 2, batch)


def to_block_kernel(kernel: Array) -> Array:
    """[k, k, C, O] as the kernel [(k + 1)/2, (k + 1)/2, 4C, 4O] that maps blocks to blocks.

    Output neighbour (dy, dx) of a block sees the kernel shifted by (dy, dx) in a window of k + 1.
    """
    size, _, channels, features = kernel.shape
    half = (size + 1) // 2
    shifted = jnp.stack(
        [jnp.pad(kernel, ((dy, 1 - dy), (dx, 1 - dx), (0, 0), (0, 0))) for dy in range(2) for dx in range(2)]
    )
    shifted = shifted.reshape(4, half, 2, half, 2, channels, features)
    return shifted.transpose(1, 3, 2, 4, 5, 0, 6).reshape(half, half, 4 * channels, 4 * features)


@jax.custom_vjp
def matmul_conv(x: Array, kernel: Array) -> Array:
    """[C, H, W, B] convolved with [k, k, C, O] without padding: one product for all kernel rows, then a shifted sum."""
    size, _, channels, features = kernel.shape
    height, width = x.shape[1] - size + 1, x.shape[2] - size + 1
    rows = kernel.transpose(0, 3, 1, 2).reshape(size * features, size * channels)
    out = (rows @ _columns(x, size)).reshape(size, features, x.shape[1], width, -1)
    return reduce(add, [out[i, :, i : i + height] for i in range(size)])


def _columns(x: Array, size: int) -> Array:
    """[size * C, H * W' * B]: what a kernel row of length `size` sees at each place."""
    width = x.shape[2] - size + 1
    return jnp.concatenate([x[:, :, j : j + width] for j in range(size)]).reshape(size * x.shape[0], -1)


def _matmul_conv_forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return matmul_conv(x, kernel), (x, kernel)


def _matmul_conv_backward(saved: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    """Each gradient as one product in its own fastest form: the transpose of the shifted sum would be far slower."""
    x, kernel = saved
    size, _, channels, features = kernel.shape
    last = size - 1
    shifted = jnp.concatenate([jnp.pad(grad, ((0, 0), (i, last - i), (0, 0), (0, 0))) for i in range(size)])
    kernel_grad = _columns(x, size) @ shifted.reshape(size * features, -1).T
    kernel_grad = kernel_grad.reshape(size, channels, size, features).transpose(2, 0, 1, 3)

    return _spread(kernel, grad), kernel_grad


matmul_conv.defvjp(_matmul_conv_forward, _matmul_conv_backward)


@jax.custom_vjp
def window_conv(x: Array, kernel: Array) -> Array:
    """`matmul_conv` as one product with the whole window of each output, which the kernel's gradient uses again."""
    return _window_forward(x, kernel)[0]


def _window_forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    size, _, channels, features = kernel.shape
    height, width = x.shape[1] - size + 1, x.shape[2] - size + 1
    parts = [x[:, i : i + height, j : j + width] for i in range(size) for j in range(size)]
    windows = jnp.concatenate(parts).reshape(size * size * channels, -1)
    out = (kernel.transpose(3, 0, 1, 2).reshape(features, -1) @ windows).reshape(features, height, width, -1)
    return out, (windows, kernel)


def _window_backward(saved: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    windows, kernel = saved
    kernel_grad = (grad.reshape(kernel.shape[3], -1) @ windows.T).T.reshape(kernel.shape)
    return _spread(kernel, grad), kernel_grad


window_conv.defvjp(_window_forward, _window_backward)


def _spread(kernel: Array, grad: Array) -> Array:
    """The gradient [C, H, W, B] of a convolution's input: what each output [O, H', W', B] sends back to its window."""
    size, _, channels, features = kernel.shape
    last = size - 1
    sent = (kernel.reshape(-1, features) @ grad.reshape(features, -1)).reshape(size, size, channels, *grad.shape[1:])
    parts = [
        jnp.pad(sent[i, j], ((0, 0), (i, last - i), (j, last - j), (0, 0))) for i in range(size) for j in range(size)
    ]
    return reduce(add, parts)
