"""Max-pooling over blocks of 2x2, in the shapes in which the forms of a convolution leave its outputs.

All have the same results. The gradient goes to the first of equal ones, as in PyTorch.
"""

import jax
import jax.numpy as jnp
from jax import Array


@jax.custom_vjp
def max_of_four(blocks: Array) -> Array:
    """[4, ...] to the maximum over the first axis; the gradient goes to the first of equal ones, as in PyTorch."""
    return jnp.maximum(jnp.maximum(blocks[0], blocks[1]), jnp.maximum(blocks[2], blocks[3]))


def _max_forward(blocks: Array) -> tuple[Array, tuple[Array, Array]]:
    largest = max_of_four(blocks)
    return largest, (blocks, largest)


def _max_backward(saved: tuple[Array, Array], grad: Array) -> tuple[Array]:
    blocks, largest = saved
    taken = jnp.zeros(largest.shape, bool)
    parts = []
    for block in blocks:
        wins = (block == largest) & ~taken
        parts.append(jnp.where(wins, grad, 0))
        taken |= wins
    return (jnp.stack(parts),)


max_of_four.defvjp(_max_forward, _max_backward)


@jax.custom_vjp
def max_of_parts(*parts: Array) -> Array:
    """The maximum of four arrays, as `max_of_four` of their stack."""
    return _largest_and_first(*parts)[0]


def _largest_and_first(*parts: Array) -> tuple[Array, Array]:
    """The maximum of four arrays, and which of them is the first that has it."""
    a, b, c, d = parts
    largest = jnp.maximum(jnp.maximum(a, b), jnp.maximum(c, d))
    first = jnp.where(a == largest, 0, jnp.where(b == largest, 1, jnp.where(c == largest, 2, 3)))
    return largest, first.astype(jnp.int8)


def _parts_backward(first: Array, grad: Array) -> tuple[Array, ...]:
    return tuple(jnp.where(first == number, grad, 0) for number in range(4))


max_of_parts.defvjp(_largest_and_first, _parts_backward)


@jax.custom_vjp
def max_of_blocks(x: Array) -> Array:
    """[C, H, W, B] to [C, H/2, W/2, B]: `max_of_four` of the 2x2 blocks, as one pass over the array each way."""
    return _blocks_forward(x)[0]


def _blocks_forward(x: Array) -> tuple[Array, Array]:
    return _largest_and_first(*(x[:, i::2, j::2] for i in range(2) for j in range(2)))


def _blocks_backward(first: Array, grad: Array) -> tuple[Array]:
    channels, height, width, batch = grad.shape
    places = jnp.arange(4, dtype=jnp.int8).reshape(1, 1, 2, 1, 2, 1)
    spread = jnp.where(first[:, :, None, :, None] == places, grad[:, :, None, :, None], 0)
    return (spread.reshape(channels, 2 * height, 2 * width, batch),)


max_of_blocks.defvjp(_blocks_forward, _blocks_backward)
