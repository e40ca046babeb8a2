"""XLA's own convolution, with a kernel gradient that stays fast under `vmap` over clients.

`vmap` makes of a kernel's gradient a grouped convolution whose window is the whole image, for which GPUs have no
kernels: 28x28 where the kernel is 5x5. The gradient of the convolution that `vmap` made is the same sum, and cuDNN has
it. So here the rule of `vmap` for a kernel's gradient is written out. A TPU has no such trouble.
"""

from collections.abc import Callable
from functools import cache, partial

import jax
from jax import Array


def convolve(x: Array, kernel: Array, stride: int, padding: int) -> Array:
    """[C, H, W, B] convolved with [k, k, C, O] to [O, H', W', B]."""
    pads = ((padding, padding), (padding, padding))
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), pads, dimension_numbers=("CHWN", "HWIO", "CHWN"))


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def plain_conv(x: Array, kernel: Array, stride: int = 1, padding: int = 0) -> Array:
    """`convolve`, with the gradient of this module."""
    return convolve(x, kernel, stride, padding)


def _forward(x: Array, kernel: Array, stride: int, padding: int) -> tuple[Array, tuple[Array, Array]]:
    return convolve(x, kernel, stride, padding), (x, kernel)


def _backward(stride: int, padding: int, saved: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    x, kernel = saved
    (x_grad,) = jax.vjp(lambda x: convolve(x, kernel, stride, padding), x)[1](grad)
    return x_grad, kernel_gradients(kernel.shape[0], stride, padding)(x[None], grad[None])[0]


plain_conv.defvjp(_forward, _backward)


@cache
def kernel_gradients(size: int, stride: int, padding: int) -> Callable[[Array, Array], Array]:
    """The gradients [n, size, size, C, O] of n kernels from inputs [n, C, H, W, B] and gradients [n, O, H', W', B]."""

    def one_by_one(x: Array, grad: Array) -> Array:
        """The gradient of each convolution, as `vmap` would have it: on TPU the faster one."""

        def gradient(x: Array, grad: Array) -> Array:
            kernel = jax.ShapeDtypeStruct((size, size, len(x), len(grad)), x.dtype)
            return jax.linear_transpose(lambda kernel: convolve(x, kernel, stride, padding), kernel)(grad)[0]

        if len(x) == 1:  # `vmap` over one would still make a group of it
            return gradient(x[0], grad[0])[None]
        return jax.vmap(gradient)(x, grad)

    def together(x: Array, grad: Array) -> Array:
        """The gradient of all convolutions at once."""
        kernels = jax.ShapeDtypeStruct((len(x), size, size, x.shape[1], grad.shape[1]), x.dtype)
        convolutions = jax.vmap(partial(convolve, stride=stride, padding=padding))
        return jax.linear_transpose(lambda kernels: convolutions(x, kernels), kernels)(grad)[0]

    @jax.custom_batching.custom_vmap
    def gradients(x: Array, grad: Array) -> Array:
        if len(x) == 1:
            return one_by_one(x, grad)
        return jax.lax.platform_dependent(x, grad, tpu=one_by_one, default=together)

    @gradients.def_vmap
    def of_more(axis_size: int, batched: list[bool], x: Array, grad: Array) -> tuple[Array, bool]:
        def all_of_them(leaf: Array, has: bool) -> Array:
            leaf = leaf if has else jax.numpy.broadcast_to(leaf, (axis_size, *leaf.shape))
            return leaf.reshape(-1, *leaf.shape[2:])

        out = gradients(all_of_them(x, batched[0]), all_of_them(grad, batched[1]))
        return out.reshape(axis_size, -1, *out.shape[1:]), True

    return gradients
