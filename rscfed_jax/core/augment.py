"""Views of a sample: crop, flip and normalise on the device as one gather, and what a view does in between.

Images for the model have the layout [channels, height, width, batch]: with the batch innermost, convolutions become
matrix products of long rows. A view is a function of a key and the cropped pixels [3, H, W, B], from 0 to 255; `weak`
leaves them as they are.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from rscfed_jax.core.types import FederatedData

View = Callable[[Array, Array], Array]  # key, pixels [3, H, W, B] -> pixels


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


def cropped(luck: Array, data: FederatedData, rows: Array, *, size: int, flip_rate: Array) -> Array:
    """[3, size, size, B] random crops, some flipped, of the images in `rows` [B], as values 0 to 255.

    `luck` [3, B] are uniform draws from [0, 1) that decide on the crop's top, its left and the flip.
    """
    places = data.images.shape[1] - size + 1
    top, left = (luck[:2] * places).astype(jnp.int32)
    flipped = luck[2] < flip_rate
    steps = jnp.arange(size)[:, None]
    y = top + steps  # [size, B]
    x = left + jnp.where(flipped, size - 1 - steps, steps)
    words = data.images.at[rows, y[:, None], x[None]].get(mode="promise_in_bounds")  # [size, size, B]
    return unpack_pixels(words)


def unpack_pixels(words: Array) -> Array:
    """[H, W, B] pixels of 32 bits as [3, H, W, B] values 0 to 255."""
    return jnp.stack([(words >> shift) & 255 for shift in (0, 8, 16)])


def normalise(pixels: Array, mean: Array, std: Array, dtype: DTypeLike) -> Array:
    """[3, H, W, B] pixel values 0 to 255 with zero mean and unit deviation per channel."""
    shape = (3, 1, 1, 1)
    return ((pixels.astype(mean.dtype) - mean.reshape(shape)) / std.reshape(shape)).astype(dtype)
