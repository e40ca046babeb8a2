"""Pixels of packed images at given places, for a whole batch.

A gather takes single pixels, on CPU from a copy of the batch's images. On TPU each pixel would be a transfer of its
own: there whole images are gathered, and products with one-hot matrices choose the pixels. The values 0 to 255 are
exact in bfloat16 and every sum has one term, so all forms have the same results to the bit.
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


def pixels_of_rectangles(images: Array, rows: Array, y: Array, x: Array) -> Array:
    """[3, H, W, B] pixels where the lines `y` [H, B] and the columns `x` [W, B] of `images[rows]` meet.

    `images` are [I, R, R] packed pixels, `rows` [B] choose among them.
    """
    return jax.lax.platform_dependent(
        images, rows, y, x, cpu=rectangles_of_near_images, tpu=rectangles_by_products, default=rectangles_by_gather
    )


def pixels_at(images: Array, rows: Array, y: Array, x: Array) -> Array:
    """[3, H, W, B] pixels at the places `y`, `x` [H, W, B] of `images[rows]`; black at places of R and above."""
    return jax.lax.platform_dependent(images, rows, y, x, tpu=places_by_products, default=places_by_gather)


def rectangles_by_gather(images: Array, rows: Array, y: Array, x: Array) -> Array:
    """`pixels_of_rectangles` on GPU: one gather of single pixels."""
    return unpack_pixels(images.at[rows, y[:, None], x[None]].get(mode="promise_in_bounds"))


def rectangles_of_near_images(images: Array, rows: Array, y: Array, x: Array) -> Array:
    """`pixels_of_rectangles` on CPU: whole images first, which come into the cache in one go, once for all views."""
    side = images.shape[1]
    near = images.at[rows].get(mode="promise_in_bounds").reshape(-1)
    places = (jnp.arange(len(rows)) * side + y)[:, None] * side + x[None]  # [H, W, B]
    return unpack_pixels(near.at[places].get(mode="promise_in_bounds"))


def rectangles_by_products(images: Array, rows: Array, y: Array, x: Array) -> Array:
    """`pixels_of_rectangles` on TPU: one product chooses lines, one columns."""
    whole = unpack_pixels(images[rows]).astype(EXACT)  # [3, B, R, R]
    one_hot = partial(jax.nn.one_hot, num_classes=images.shape[1], dtype=EXACT)
    lines = jnp.einsum("hbr,cbrs->cbhs", one_hot(y), whole)
    return jnp.einsum("cbhs,wbs->chwb", lines, one_hot(x)).astype(images.dtype)


def places_by_gather(images: Array, rows: Array, y: Array, x: Array) -> Array:
    """`pixels_at` on CPU and GPU."""
    return unpack_pixels(images.at[rows, y, x].get(mode="fill", fill_value=0))


def places_by_products(images: Array, rows: Array, y: Array, x: Array) -> Array:
    """`pixels_at` on TPU: a product chooses the line of each new pixel, a comparison its column.

    Three shears by products, the usual way to rotate, round three times, and by the compiler's estimate for a TPU v5e
    each rotation costs four times as much as this does for a whole view.
    """
    whole = unpack_pixels(images[rows]).astype(EXACT)  # [3, B, R, R]
    side, shape = images.shape[1], y.shape
    y, x = (place.reshape(-1, len(rows)).T for place in (y, x))  # [B, H * W]
    lines = jnp.einsum("bpr,cbrs->cbsp", jax.nn.one_hot(y, side, dtype=EXACT), whole)
    there = x[:, None] == jnp.arange(side)[:, None]  # [B, R, H * W]
    found = jnp.sum(jnp.where(there, lines, 0), axis=2)  # [3, B, H * W]
    return jnp.moveaxis(found, 1, 2).reshape(3, *shape).astype(images.dtype)
