"""The colour operations of RandAugment, on one image: Pillow's results, up to one level of 255.

An operation is a function of pixels [3, H, W], float32 whole numbers from 0 to 255, and a strength from 0 to 1.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from rscfed_jax.core.pixels import EXACT, pack_pixels, unpack_pixels
from rscfed_jax.core.types import Array

Operation = Callable[[Array, Array], Array]  # pixels, strength -> pixels
LUMINANCE = (19595, 38470, 7471)  # of 2**16


def recoloured(words: Array, colour: Array, strength: Array) -> Array:
    """[H, W] packed pixels after the operation of this number: 0 for none, or its place in `COLOURS` from 1 on."""

    def nothing(words: Array, strength: Array) -> Array:
        return words

    return jax.lax.switch(colour, [nothing, *map(_on_words, COLOURS.values())], words, strength)


def _on_words(operation: Operation) -> Operation:
    """The operation on packed pixels [H, W]."""

    def run(words: Array, strength: Array) -> Array:
        out = operation(unpack_pixels(words).astype(jnp.float32), strength)
        return pack_pixels(jnp.floor(jnp.clip(out, 0, 255) + 1e-3))  # whole numbers stay so, whatever their rounding

    return run


def autocontrast(pixels: Array, strength: Array) -> Array:
    """Each channel stretched to 0 to 255."""
    low, high = jnp.min(pixels, axis=(1, 2), keepdims=True), jnp.max(pixels, axis=(1, 2), keepdims=True)
    return jnp.where(high > low, (pixels - low) * 255 / jnp.maximum(high - low, 1), pixels)


def brightness(pixels: Array, strength: Array) -> Array:
    """Mixed with black."""
    return _mixed(pixels, jnp.zeros_like(pixels), strength)


def color(pixels: Array, strength: Array) -> Array:
    """Mixed with its own grey."""
    return _mixed(pixels, _grey(pixels).astype(pixels.dtype), strength)


def contrast(pixels: Array, strength: Array) -> Array:
    """Mixed with its mean grey."""
    grey = _grey(pixels)
    return _mixed(pixels, jnp.floor(jnp.sum(grey) / grey.size + 0.5), strength)


def sharpness(pixels: Array, strength: Array) -> Array:
    """Mixed with an image in which each pixel is mixed with its eight neighbours; the border stays."""
    lines = pixels[:, :-2] + pixels[:, 1:-1] + pixels[:, 2:]
    squares = lines[..., :-2] + lines[..., 1:-1] + lines[..., 2:]
    inner = jnp.floor((squares + 4 * pixels[:, 1:-1, 1:-1]) / 13 + 0.5)
    is_inner = jnp.pad(jnp.ones(inner.shape[1:], bool), 1)
    return _mixed(pixels, jnp.where(is_inner, jnp.pad(inner, ((0, 0), (1, 1), (1, 1))), pixels), strength)


def equalize(pixels: Array, strength: Array) -> Array:
    """Values spread evenly in each channel."""
    values = pixels.astype(jnp.int32).reshape(3, -1)
    counts = jax.lax.platform_dependent(values, cpu=counts_by_scatter, default=counts_by_products)
    before = jnp.cumsum(counts, axis=1) - counts
    largest = jnp.arange(256) == jnp.max(values, axis=1, keepdims=True)
    last = jnp.sum(jnp.where(largest, counts, 0), axis=1, keepdims=True)
    step = (values.shape[1] - last) // 255
    spread = jnp.clip((before + step // 2) // jnp.maximum(step, 1), 0, 255)
    table = jnp.where(step > 0, spread, jnp.arange(256)).astype(jnp.int32)
    found = jax.lax.platform_dependent(table, values, cpu=look_up, default=look_up_by_products)
    return found.astype(pixels.dtype).reshape(pixels.shape)


def posterize(pixels: Array, strength: Array) -> Array:
    """Four to seven bits kept of each value."""
    step = 2.0 ** (4 - jnp.floor(strength * 4))
    return jnp.floor(pixels / step) * step


def solarize(pixels: Array, strength: Array) -> Array:
    """Values from a threshold on turned upside down; the threshold falls with the strength."""
    return jnp.where(pixels >= 256 - jnp.floor(strength * 256), 255 - pixels, pixels)


COLOURS = {
    operation.__name__: operation
    for operation in (autocontrast, brightness, color, contrast, equalize, posterize, sharpness, solarize)
}


def _mixed(pixels: Array, poorer: Array, strength: Array) -> Array:
    return poorer + (0.05 + 0.9 * strength) * (pixels - poorer)


def _grey(pixels: Array) -> Array:
    """[H, W] int32 luminance, rounded as Pillow does."""
    return (jnp.tensordot(jnp.array(LUMINANCE, jnp.int32), pixels.astype(jnp.int32), axes=1) + 2**15) >> 16


def counts_by_scatter(values: Array) -> Array:
    """[3, 256] how often each value is among [3, P]."""
    channel = jnp.arange(3)[:, None]
    return jnp.zeros((3, 256), jnp.int32).at[channel, values].add(1, mode="promise_in_bounds")


def counts_by_products(values: Array) -> Array:
    """The same without a scatter: pairs of a value's two hexadecimal digits, counted by a product of one-hot rows."""
    high, low = (jax.nn.one_hot(digit, 16, dtype=EXACT) for digit in (values >> 4, values & 15))
    counts = jnp.einsum("cph,cpl->chl", high, low, preferred_element_type=jnp.float32)
    return counts.astype(jnp.int32).reshape(3, 256)


def look_up(table: Array, values: Array) -> Array:
    """[3, P] entries of `table` [3, 256] at `values`."""
    return table.at[jnp.arange(3)[:, None], values].get(mode="promise_in_bounds")


def look_up_by_products(table: Array, values: Array) -> Array:
    """The same without a gather: a product finds the row of the first digit, a comparison the second."""
    lines = jnp.einsum(
        "cph,chl->cpl", jax.nn.one_hot(values >> 4, 16, dtype=EXACT), table.astype(EXACT).reshape(3, 16, 16)
    )
    there = (values & 15)[..., None] == jnp.arange(16)
    return jnp.sum(jnp.where(there, lines, 0), axis=2).astype(jnp.int32)
