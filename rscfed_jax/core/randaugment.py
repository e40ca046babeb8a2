"""Strong views: RandAugment and cutout, on the device.

Cubuk, Zoph, Shlens, Le. NeurIPS 2020. https://arxiv.org/abs/1909.13719; cutout: DeVries, Taylor. 2017.
https://arxiv.org/abs/1708.04552

Federated semi-supervised methods use two variants. `strong` is that of most PyTorch versions of FixMatch: two
operations of fourteen, each used with probability 1/2 at one of nine strengths, then a grey square of half the image's
side. `torchssl` is that of TorchSSL: three operations, always used, at any strength, then a square of up to half the
side. Neither flips: `--flip` does.

Each operation has Pillow's result, up to one level of 255 and the rounding of places half-way between two pixels.
Where a view differs from Pillow's operations one after the other:
- The geometry of all operations comes first, as one affine map that is part of the crop, with one rounding to the
  nearest pixel. So a pixel that one operation moves out of the image and the next moves back is kept, and black corners
  take part in the statistics of every colour operation.
- Then come the colours, in the order drawn.
- Cutout's square has its centre anywhere in the image and is clipped at all four borders.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from rscfed_jax.core.augment import Paint, View, moved_places, weak
from rscfed_jax.core.colours import COLOURS, recoloured
from rscfed_jax.core.pixels import pack_pixels, pixels_at, unpack_pixels
from rscfed_jax.core.types import Array

GEOMETRY = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
NAMES = ("identity", *GEOMETRY, *COLOURS)
MOST_DEGREES, MOST_SHEAR, MOST_SHIFT = 30, 0.3, 0.3


@dataclass(frozen=True)
class RandAugment:
    """A strong view: a `MovingView`, and as a function of a key and pixels [3, H, W, B] the same without the crop."""

    drawn: int = 2  # operations of a view
    used: float = 0.5  # probability of each to be used
    levels: int | None = 10  # strengths are 1/10 to 9/10, degrees and shifts whole numbers; None: any from 0 to 1
    hole: tuple[float, float] = (0.5, 0.5)  # smallest and largest side of the square, as a share of the image's
    fill: tuple[int, int, int] = (127, 127, 127)  # its colour

    def plan(self, key: Array, *, batch: int, side: int) -> tuple[Array, Paint]:
        """[2, 3, B] maps of the operations that move pixels, and the others."""
        which, level, sign, used, centre = jax.random.split(key, 5)
        shape = (self.drawn, batch)
        operation = jax.random.randint(which, shape, 0, len(NAMES), jnp.int32)
        if self.used < 1:
            operation = jnp.where(jax.random.bernoulli(used, self.used, shape), operation, NAMES.index("identity"))
        if self.levels is None:
            strength = jax.random.uniform(level, shape, jnp.float32)
            signed = 2 * strength - 1
        else:
            strength = jax.random.randint(level, shape, 1, self.levels, jnp.int32).astype(jnp.float32) / self.levels
            signed = jnp.where(jax.random.bernoulli(sign, shape=shape), strength, -strength)
        maps = affine_maps(operation, signed, side=side, whole=self.levels is not None)
        luck = jax.random.uniform(centre, (3, batch), jnp.float32)

        def paint(pixels: Array) -> Array:
            return self._with_hole(luck, with_colours(pixels, operation, strength))

        return maps, paint

    def __call__(self, key: Array, pixels: Array) -> Array:
        """The view of pixels [3, H, W, B] that were cropped already; they are whole numbers from 0 to 255."""
        maps, paint = self.plan(key, batch=pixels.shape[3], side=pixels.shape[1])
        return paint(warped(pixels, maps))

    def _with_hole(self, luck: Array, pixels: Array) -> Array:
        low, high = self.hole
        return cutout(pixels, centre=luck[:2], share=low + (high - low) * luck[2], fill=self.fill)


def affine_maps(operation: Array, strength: Array, *, side: int, whole: bool) -> Array:
    """[2, 3, B] maps from a new pixel's place (x, y, 1), seen from the image's centre, to the old one.

    Of all operations [n, B] in the order drawn, at strengths from -1 to 1; degrees and pixels are whole numbers if
    `whole` says so.
    """
    zero, one = jnp.zeros_like(strength), jnp.ones_like(strength)

    def amount(name: str, most: float) -> Array:
        size = strength * most
        return jnp.where(operation == NAMES.index(name), jnp.trunc(size) if whole and most >= 1 else size, 0)

    angle = jnp.deg2rad(amount("rotate", MOST_DEGREES))
    shear_x, shear_y = amount("shear_x", MOST_SHEAR), amount("shear_y", MOST_SHEAR)
    shift_x, shift_y = amount("translate_x", MOST_SHIFT * side), amount("translate_y", MOST_SHIFT * side)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    # Pillow shears from the image's corner, not from its centre.
    lines = [[cos, shear_x - sin, shift_x + shear_x * side / 2], [shear_y + sin, cos, shift_y + shear_y * side / 2]]
    each = jnp.stack([jnp.stack(line) for line in [*lines, [zero, zero, one]]])  # [3, 3, n, B]
    together = each[:, :, 0]
    for number in range(1, each.shape[2]):
        # The operation drawn first is the last that a new pixel's place goes through.
        together = jnp.sum(together[:, :, None] * each[None, :, :, number], axis=1)
    return together[:2]


def warped(pixels: Array, maps: Array) -> Array:
    """[3, H, H, B] pixels at the places that `maps` [2, 3, B] say, the nearest ones; black outside the image."""
    side = pixels.shape[2]
    images = jnp.moveaxis(pack_pixels(pixels), -1, 0)
    y, x, inside = moved_places(maps, side=side)
    found = pixels_at(images, None, jnp.where(inside, y, side), jnp.where(inside, x, side))
    return found.astype(pixels.dtype)


def with_colours(pixels: Array, operation: Array, strength: Array) -> Array:
    """[3, H, W, B] pixels, each sample after the colour operations among those [n, B] that it drew, one by one."""
    colour = jnp.maximum(operation - len(GEOMETRY), 0)  # 0 for no colour operation

    def one_sample(words: Array, colour: Array, strength: Array) -> Array:
        for number in range(len(colour)):
            words = recoloured(words, colour[number], strength[number])
        return words

    def one_by_one(*drawn: Array) -> Array:
        """Computes only what a sample drew."""
        return jax.lax.map(lambda one: one_sample(*one), drawn)

    words = jnp.moveaxis(pack_pixels(pixels), -1, 0)
    # A `vmap` computes all operations of every sample and then chooses: good for a device that has no quick branches.
    words = jax.lax.platform_dependent(words, colour.T, strength.T, cpu=one_by_one, default=jax.vmap(one_sample))
    return unpack_pixels(jnp.moveaxis(words, 0, -1)).astype(pixels.dtype)


def cutout(pixels: Array, *, centre: Array, share: Array, fill: tuple[int, int, int]) -> Array:
    """[3, H, W, B] pixels with a square of one colour, clipped at the borders.

    Its centre [2, B], down and across, and its side [B] are shares of the image's side.
    """
    _, height, width, _ = pixels.shape
    side = jnp.floor(share * width)
    top, left = jnp.floor(centre[0] * height - side / 2), jnp.floor(centre[1] * width - side / 2)
    y, x = jnp.arange(height)[:, None, None], jnp.arange(width)[None, :, None]
    covered = (y >= top) & (y < top + side) & (x >= left) & (x < left + side)
    return jnp.where(covered, jnp.array(fill, pixels.dtype).reshape(3, 1, 1, 1), pixels)


strong = RandAugment()
torchssl = RandAugment(drawn=3, used=1.0, levels=None, hole=(0.0, 0.5), fill=(125, 123, 114))
STRONG_VIEWS: dict[str, View] = {"randaugment": strong, "torchssl": torchssl, "weak": weak}
