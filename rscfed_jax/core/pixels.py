"""Pixels of packed images at given places, for a whole batch.

A gather takes single pixels. On TPU each pixel would be a transfer of its own: there products with one-hot matrices
choose the pixels. The values 0 to 255 are exact in bfloat16 and every sum has one term, so both forms have the same
results to the bit.
"""

from functools import partial

import jax
import jax.numpy as jnp

from rscfed_jax.core.types import Array

EXACT = jnp.bfloat16  # holds the values 0 to 255


def unpack_pixels(words: Array) -> Array:
    """[...] pixels of 32 bits as [3, ...] values 0 to 255."""
    return jnp.stack([(words >> shift) & 255 for shift in (0, 8, 16)])


def pack_pixels(pixels: Array) -> Array:
    """[3, ...] whole numbers 0 to 255 as [...] pixels of 32 bits."""
    red, green, blue = pixels.astype(jnp.uint32)
    return red | green << 8 | blue << 16


def rows_or_all(images: Array, rows: Array | None) -> Array:
    """[B] the rows asked for, or all of them in turn."""
    return jnp.arange(len(images)) if rows is None else rows


def pixels_of_rectangles(images: Array, rows: Array | None, y: Array, x: Array) -> Array:
    """[3, H, W, B] pixels where the lines `y` [H, B] and the columns `x` [W, B] of `images[rows]` meet.

    `images` are [I, R, R] packed pixels, `rows` [B] choose among them; without `rows`, they are those of the batch.
    """
    return jax.lax.platform_dependent(images, rows, y, x, tpu=rectangles_by_products, default=rectangles_by_gather)


def pixels_at(images: Array, rows: Array | None, y: Array, x: Array) -> Array:
    """[3, H, W, B] pixels at the places `y`, `x` [H, W, B] of `images[rows]`; black at places of R and above."""
    return jax.lax.platform_dependent(images, rows, y, x, tpu=places_by_products, default=places_by_gather)


def rectangles_by_gather(images: Array, rows: Array | None, y: Array, x: Array) -> Array:
    """`pixels_of_rectangles` on CPU and GPU."""
    side = images.shape[1]
    places = (y * side)[:, None] + x[None]  # [H, W, B]
    return unpack_pixels(
        images.reshape(-1, side * side).at[rows_or_all(images, rows), places].get(mode="promise_in_bounds")
    )


def rectangles_by_products(images: Array, rows: Array | None, y: Array, x: Array) -> Array:
    """`pixels_of_rectangles` on TPU: one product chooses lines, one columns."""
    whole = unpack_pixels(images if rows is None else images[rows]).astype(EXACT)  # [3, B, R, R]
    one_hot = partial(jax.nn.one_hot, num_classes=images.shape[1], dtype=EXACT)
    lines = jnp.einsum("hbr,cbrs->cbhs", one_hot(y), whole)
    return jnp.einsum("cbhs,wbs->chwb", lines, one_hot(x)).astype(images.dtype)


def places_by_gather(images: Array, rows: Array | None, y: Array, x: Array) -> Array:
    """`pixels_at` on CPU and GPU."""
    return unpack_pixels(images.at[rows_or_all(images, rows), y, x].get(mode="fill", fill_value=0))


def places_by_products(images: Array, rows: Array | None, y: Array, x: Array) -> Array:
    """`pixels_at` on TPU: a product chooses the line of each new pixel, a comparison its column.

    Three shears by products, the usual way to rotate, round three times, and by the compiler's estimate for a TPU v5e
    each rotation costs four times as much as this does for a whole view.
    """
    whole = unpack_pixels(images if rows is None else images[rows]).astype(EXACT)  # [3, B, R, R]
    side, shape = images.shape[1], y.shape
    y, x = (place.reshape(-1, y.shape[-1]).T for place in (y, x))  # [B, H * W]
    lines = jnp.einsum("bpr,cbrs->cbsp", jax.nn.one_hot(y, side, dtype=EXACT), whole)
    there = x[:, None] == jnp.arange(side)[:, None]  # [B, R, H * W]
    found = jnp.sum(jnp.where(there, lines, 0), axis=2)  # [3, B, H * W]
    return jnp.moveaxis(found, 1, 2).reshape(3, *shape).astype(images.dtype)
