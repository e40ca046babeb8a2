"""Views of a sample: crop, flip and normalise on the device, and what a view does in between.

Images for the model have the layout [channels, height, width, batch]: with the batch innermost, convolutions become
matrix products of long rows. A view is a function of a key and the cropped pixels [3, H, W, B], from 0 to 255; `weak`
leaves them as they are. A view that moves pixels may be a `MovingView` instead: crop, flip and its own geometry are
then one lookup.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from rscfed_jax.core.pixels import pixels_at, pixels_of_rectangles

Paint = Callable[[Array], Array]  # pixels [3, H, W, B] -> pixels


@runtime_checkable
class MovingView(Protocol):
    """A view with a geometry of its own, as the frozen dataclass `RandAugment` is."""

    def plan(self, key: Array, *, batch: int, side: int) -> tuple[Array, Paint]:
        """[2, 3, B] maps from each new pixel's place to the old one, and what happens to the pixels found there.

        A place is (x, y, 1), in pixels from the centre of the crop of `side` pixels. Outside the crop is black.
        """


View = Callable[[Array, Array], Array] | MovingView  # key, pixels [3, H, W, B] -> pixels


def weak(key: Array, pixels: Array) -> Array:
    """A random crop, flipped with the probability that `--flip` asks for, and nothing else."""
    del key
    return pixels


def as_prepared(key: Array, pixels: Array) -> Array:
    """The weak view that the method's `prepare` saw of the sample; of one that has a label, a fresh one."""
    return weak(key, pixels)


def centre(key: Array, pixels: Array) -> Array:
    """The middle of the image, never flipped: the same view every time."""
    return weak(key, pixels)


def cropped(
    luck: Array, images: Array, rows: Array | None, *, size: int, flip_rate: Array, maps: Array | None = None
) -> Array:
    """[3, size, size, B] random crops, some flipped, of `images[rows]` (all without `rows`), as values 0 to 255.

    `luck` [3, B] are uniform draws from [0, 1) that decide on the crop's top, its left and the flip. `maps` [2, 3, B]
    move the pixels of the crop, as `MovingView` says.
    """
    places = images.shape[1] - size + 1
    top, left = (luck[:2] * places).astype(jnp.int32)
    flipped = luck[2] < flip_rate
    if maps is not None:
        y, x, inside = moved_places(maps, side=size)
        outside = images.shape[1]
        x = jnp.where(flipped, size - 1 - x, x)
        return pixels_at(images, rows, jnp.where(inside, top + y, outside), jnp.where(inside, left + x, outside))
    steps = jnp.arange(size)[:, None]
    y = top + steps  # [size, B]
    x = left + jnp.where(flipped, size - 1 - steps, steps)
    return pixels_of_rectangles(images, rows, y, x)


def moved_places(maps: Array, *, side: int) -> tuple[Array, Array, Array]:
    """[side, side, B] line and column nearest to where `maps` [2, 3, B] send each pixel, and if they are in the image.

    A place on the border of two pixels belongs to the second, whatever the rounding of its float.
    """
    steps = jnp.arange(side, dtype=maps.dtype) + (0.5 - side / 2)
    across, down = steps[None, :, None], steps[:, None, None]
    x, y = (jnp.floor(row[0] * across + row[1] * down + (row[2] + side / 2 + 1e-4)).astype(jnp.int32) for row in maps)
    return y, x, (x >= 0) & (x < side) & (y >= 0) & (y < side)


def normalise(pixels: Array, mean: Array, std: Array, dtype: DTypeLike) -> Array:
    """[3, H, W, B] pixel values 0 to 255 with zero mean and unit deviation per channel."""
    shape = (3, 1, 1, 1)
    return ((pixels.astype(mean.dtype) - mean.reshape(shape)) / std.reshape(shape)).astype(dtype)
