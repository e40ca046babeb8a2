"""Colour operations of strong views against Pillow's, one by one, and their forms for accelerators."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps

from rscfed_jax.core.colours import (
    COLOURS,
    counts_by_products,
    counts_by_scatter,
    look_up,
    look_up_by_products,
    recoloured,
)
from rscfed_jax.core.pixels import unpack_pixels
from rscfed_jax.data.table import pack_pixels

SIDE = 32
LEVELS = [level / 10 for level in range(1, 10)]  # of the variant `strong`; `torchssl` draws any strength

recolour = jax.jit(recoloured)
seeds = st.integers(0, 2**32 - 1)


def picture(seed):
    """A smooth [H, W, 3] picture with some noise, of low or high contrast, one channel of few values."""
    rng = np.random.default_rng(seed)
    waves = np.sin(np.linspace(0, 5, SIDE))[:, None, None] * np.linspace(0.3, 1, SIDE)[None, :, None]
    image = rng.uniform(40, 200) + rng.uniform(5, 120) * waves + rng.normal(0, rng.uniform(0, 30), (SIDE, SIDE, 3))
    image[..., 2] = image[..., 2] // rng.integers(1, 64) * 3
    return np.clip(image, 0, 255).astype(np.uint8)


def by_pillow(image, name, strength):
    """The operation as the PyTorch versions of FixMatch and TorchSSL call it."""
    image = Image.fromarray(image)
    enhance = {"brightness": ImageEnhance.Brightness, "color": ImageEnhance.Color}
    enhance |= {"contrast": ImageEnhance.Contrast, "sharpness": ImageEnhance.Sharpness}
    if name in enhance:
        return enhance[name](image).enhance(0.05 + 0.9 * strength)
    if name == "posterize":
        return ImageOps.posterize(image, int(4 + 4 * strength))
    if name == "solarize":
        return ImageOps.solarize(image, 256 - 256 * strength)
    return {"autocontrast": ImageOps.autocontrast, "equalize": ImageOps.equalize}[name](image)


def ours(image, name, strength):
    """The operation on an [H, W, 3] image."""
    number = 1 + list(COLOURS).index(name)
    words = recolour(pack_pixels(image[None])[0], jnp.int32(number), jnp.float32(strength))
    return np.asarray(unpack_pixels(words)).transpose(1, 2, 0)


@pytest.mark.parametrize("name", COLOURS)
@given(seed=seeds, strength=st.sampled_from(LEVELS) | st.floats(0, 1, exclude_max=True, width=32))
@example(seed=0, strength=0.0)
def test_a_colour_operation_is_that_of_pillow(name, seed, strength):
    image = picture(seed)
    theirs = np.asarray(by_pillow(image, name, float(np.float32(strength)))).astype(int)
    assert np.abs(ours(image, name, strength) - theirs).max() <= 1


@pytest.mark.parametrize("name", COLOURS)
@pytest.mark.parametrize("value", [0, 77, 255])
def test_an_image_of_one_colour_is_no_special_case(name, value):
    image = np.full((SIDE, SIDE, 3), value, np.uint8)
    theirs = np.asarray(by_pillow(image, name, 0.5)).astype(int)
    assert np.abs(ours(image, name, 0.5) - theirs).max() <= 1


def test_number_0_leaves_the_image_as_it_is():
    words = pack_pixels(picture(0)[None])[0]
    np.testing.assert_array_equal(recolour(words, jnp.int32(0), jnp.float32(0.5)), words)


@given(seed=seeds)
def test_products_count_and_look_up_as_scatter_and_gather_do(seed):
    rng = np.random.default_rng(seed)
    values = jnp.asarray(rng.integers(0, rng.integers(1, 257), (3, SIDE * SIDE)), jnp.int32)
    table = jnp.asarray(rng.integers(0, 256, (3, 256)), jnp.int32)
    np.testing.assert_array_equal(counts_by_products(values), counts_by_scatter(values))
    np.testing.assert_array_equal(look_up_by_products(table, values), look_up(table, values))
