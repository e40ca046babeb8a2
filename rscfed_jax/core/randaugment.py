"""A strong view: RandAugment and cutout, on the device.

Cubuk, Zoph, Shlens, Le. NeurIPS 2020. https://arxiv.org/abs/1909.13719; cutout: DeVries, Taylor. 2017.
https://arxiv.org/abs/1708.04552

The variant of most PyTorch versions of FixMatch: two operations of fourteen, each used with probability 1/2 at one of
nine strengths, then a grey square of half the image's side. Operations have Pillow's results, up to one level of 255.
Choice: the geometry of both operations comes first, as one affine map with one rounding to the nearest pixel; then
their colours, in the order drawn.
"""

import jax
import jax.numpy as jnp

from rscfed_jax.core.types import Array

GEOMETRY = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
COLOURS = ("autocontrast", "brightness", "color", "contrast", "equalize", "posterize", "sharpness", "solarize")
NAMES = ("identity", *GEOMETRY, *COLOURS)
DRAWN = 2  # operations of a view
LEVELS = 10  # strengths are 1/10 to 9/10
MOST_DEGREES, MOST_SHEAR, MOST_SHIFT = 30, 0.3, 0.3
GREY = 127.0
LUMINANCE = (0.299, 0.587, 0.114)


def strong(key: Array, pixels: Array) -> Array:
    """[3, H, W, B] pixels from 0 to 255, each sample with operations of its own."""
    which, level, sign, used, centre = jax.random.split(key, 5)
    shape = (DRAWN, pixels.shape[3])
    operation = jax.random.randint(which, shape, 0, len(NAMES))
    operation = jnp.where(jax.random.bernoulli(used, shape=shape), operation, NAMES.index("identity"))
    strength = jax.random.randint(level, shape, 1, LEVELS) / LEVELS
    signed = strength * jnp.where(jax.random.bernoulli(sign, shape=shape), 1, -1)
    pixels = warped(pixels, affine_maps(operation, signed, side=pixels.shape[1]))
    for number in range(DRAWN):
        pixels = recoloured(pixels, operation[number], strength[number])
    return cutout(jax.random.uniform(centre, (2, pixels.shape[3])), pixels)


def affine_maps(operation: Array, strength: Array, *, side: int) -> Array:
    """[B, 2, 3] maps from a new pixel's place (x, y, 1), seen from the image's centre, to the old one."""
    whole = jnp.broadcast_to(jnp.eye(3), (operation.shape[1], 3, 3))
    for number in range(DRAWN):
        is_, level = {name: operation[number] == NAMES.index(name) for name in GEOMETRY}, strength[number]
        angle = jnp.where(is_["rotate"], jnp.deg2rad(jnp.trunc(level * MOST_DEGREES)), 0.0)
        shear = level * MOST_SHEAR
        shift = jnp.trunc(level * MOST_SHIFT * side)
        one = jnp.zeros_like(whole).at[:, 2, 2].set(1.0)
        one = one.at[:, 0, 0].set(jnp.cos(angle)).at[:, 0, 1].set(jnp.where(is_["shear_x"], shear, -jnp.sin(angle)))
        one = one.at[:, 1, 0].set(jnp.where(is_["shear_y"], shear, jnp.sin(angle))).at[:, 1, 1].set(jnp.cos(angle))
        # Pillow shears from the image's corner, not from its centre.
        corner = shear * side / 2
        one = one.at[:, 0, 2].set(jnp.where(is_["translate_x"], shift, jnp.where(is_["shear_x"], corner, 0.0)))
        one = one.at[:, 1, 2].set(jnp.where(is_["translate_y"], shift, jnp.where(is_["shear_y"], corner, 0.0)))
        # The operation drawn first is the last that a new pixel's place goes through.
        whole = jnp.einsum("bij,bjk->bik", whole, one, precision=jax.lax.Precision.HIGHEST)
    return whole[:, :2]


def warped(pixels: Array, maps: Array) -> Array:
    """[3, H, W, B] pixels at the places that `maps` [B, 2, 3] say, the nearest ones; black outside the image."""
    _, height, width, batch = pixels.shape
    y, x = jnp.meshgrid(jnp.arange(height) + 0.5, jnp.arange(width) + 0.5, indexing="ij")
    middle = jnp.array([width / 2, height / 2])
    places = jnp.stack([x.ravel() - middle[0], y.ravel() - middle[1], jnp.ones(height * width)])  # [3, H * W]
    old = jnp.einsum("bij,jp->bip", maps, places, precision=jax.lax.Precision.HIGHEST) + middle[:, None]
    column, row = jnp.floor(old[:, 0] + 1e-4).astype(jnp.int32), jnp.floor(old[:, 1] + 1e-4).astype(jnp.int32)
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    place = (jnp.clip(row, 0, height - 1) * width + jnp.clip(column, 0, width - 1)).T  # [H * W, B]
    found = jnp.take_along_axis(pixels.reshape(3, height * width, batch), place[None], axis=1)
    return jnp.where(inside.T, found, 0).reshape(pixels.shape)


def recoloured(pixels: Array, operation: Array, strength: Array) -> Array:
    """[3, H, W, B] pixels, each sample after the colour operation [B] that it drew, if it drew one."""

    def drew(name: str) -> Array:
        return operation == NAMES.index(name)

    grey = jnp.tensordot(jnp.array(LUMINANCE, pixels.dtype), pixels, axes=1)  # [H, W, B]
    mean = jnp.floor(jnp.mean(jnp.round(grey), axis=(0, 1)) + 0.5)
    # Brightness, colour, contrast and sharpness mix the image with a poorer one.
    poorer = jnp.where(drew("color"), jnp.round(grey), jnp.where(drew("contrast"), mean, 0.0))
    poorer = jnp.where(drew("sharpness"), smoothed(pixels), poorer)
    mixes = drew("brightness") | drew("color") | drew("contrast") | drew("sharpness")
    out = jnp.where(mixes, poorer + (strength * 0.9 + 0.05) * (pixels - poorer), pixels)
    low, high = jnp.min(pixels, axis=(1, 2), keepdims=True), jnp.max(pixels, axis=(1, 2), keepdims=True)
    stretched = (pixels - low) * 255 / jnp.maximum(high - low, 1)
    out = jnp.where(drew("autocontrast") & (high > low), stretched, out)
    out = jnp.where(drew("equalize"), equalized(pixels), out)
    step = 2.0 ** (4 - jnp.floor(strength * 4))  # 4 to 7 bits are kept
    out = jnp.where(drew("posterize"), jnp.floor(pixels / step) * step, out)
    turned = pixels >= 256 - jnp.floor(strength * 256)
    out = jnp.where(drew("solarize") & turned, 255 - pixels, out)
    return jnp.floor(jnp.clip(out, 0, 255) + 1e-3)


def smoothed(pixels: Array) -> Array:
    """[3, H, W, B] pixels, each mixed with its eight neighbours; the border stays."""
    _, height, width, _ = pixels.shape
    parts = [
        (5 if dy == dx == 1 else 1) * pixels[:, dy : dy + height - 2, dx : dx + width - 2]
        for dy in range(3)
        for dx in range(3)
    ]
    inner = jnp.floor(sum(parts) / 13 + 0.5)
    return pixels.at[:, 1:-1, 1:-1].set(inner)


def equalized(pixels: Array) -> Array:
    """[3, H, W, B] pixels whose values are spread evenly in each channel of each sample."""
    channels, height, width, batch = pixels.shape
    values = jnp.clip(pixels, 0, 255).astype(jnp.int32).reshape(channels, height * width, batch)
    channel, sample = jnp.arange(channels)[:, None, None], jnp.arange(batch)[None, None]
    counts = jnp.zeros((channels, 256, batch), jnp.int32).at[channel, values, sample].add(1)
    before = jnp.cumsum(counts, axis=1) - counts
    largest = jnp.max(values, axis=1, keepdims=True)
    last = jnp.take_along_axis(counts, largest, axis=1)
    step = (height * width - last) // 255
    table = jnp.clip((before + step // 2) // jnp.maximum(step, 1), 0, 255)
    found = jnp.take_along_axis(table, values, axis=1)
    return jnp.where(step > 0, found, values).astype(pixels.dtype).reshape(pixels.shape)


def cutout(luck: Array, pixels: Array) -> Array:
    """[3, H, W, B] pixels with a grey square of half the side, whose centre is where `luck` [2, B] says."""
    _, height, width, _ = pixels.shape
    half = height // 4
    y, x = jnp.arange(height)[:, None, None], jnp.arange(width)[None, :, None]
    top, left = jnp.floor(luck[0] * height) - half, jnp.floor(luck[1] * width) - half
    covered = (y >= top) & (y < top + 2 * half) & (x >= left) & (x < left + 2 * half)
    return jnp.where(covered, GREY, pixels)


STRONG_VIEWS = {"fixmatch": strong, "torchssl": strong}
