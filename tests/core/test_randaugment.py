"""The strong view: its operations against Pillow's, and what a whole view does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from rscfed_jax.core.randaugment import (
    COLOURS,
    DRAWN,
    GEOMETRY,
    GREY,
    NAMES,
    affine_maps,
    cutout,
    recoloured,
    strong,
    warped,
)

SIDE, BATCH = 32, 3


@pytest.fixture(scope="module")
def images():
    """[B, H, W, 3] smooth pictures with some noise, one of low contrast."""
    rng = np.random.default_rng(0)
    waves = np.sin(np.linspace(0, 5, SIDE))[:, None, None] * np.linspace(0.3, 1, SIDE)[None, :, None]
    smooth = 128 + 90 * waves + rng.normal(0, 20, (BATCH, SIDE, SIDE, 3))
    smooth[1] = 100 + smooth[1] / 6
    return np.clip(smooth, 0, 255).astype(np.uint8)


def by_pillow(image, name, level):
    """The operation on one image, as the PyTorch versions of FixMatch do it."""
    enhance = {"brightness": ImageEnhance.Brightness, "color": ImageEnhance.Color}
    enhance |= {"contrast": ImageEnhance.Contrast, "sharpness": ImageEnhance.Sharpness}
    size, shift = image.size, int(level * 0.3 * SIDE)
    maps = {
        "shear_x": (1, level * 0.3, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, level * 0.3, 1, 0),
        "translate_x": (1, 0, shift, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, shift),
    }
    if name in enhance:
        return enhance[name](image).enhance(level * 0.9 + 0.05)
    if name in maps:
        return image.transform(size, Image.Transform.AFFINE, maps[name])
    if name == "rotate":
        return image.rotate(int(level * 30))
    if name == "posterize":
        return ImageOps.posterize(image, 4 + int(level * 4))
    if name == "solarize":
        return ImageOps.solarize(image, 256 - int(level * 256))
    return {"autocontrast": ImageOps.autocontrast, "equalize": ImageOps.equalize}[name](image)


def to_ours(images):
    return jnp.asarray(images.transpose(3, 1, 2, 0), jnp.float32)


@pytest.mark.parametrize("name", COLOURS)
def test_a_colour_operation_is_that_of_pillow(images, name):
    for level in (0.1, 0.5, 0.9):
        operation = jnp.full(BATCH, NAMES.index(name))
        ours = np.asarray(recoloured(to_ours(images), operation, jnp.full(BATCH, level))).transpose(3, 1, 2, 0)
        theirs = np.stack([np.asarray(by_pillow(Image.fromarray(image), name, level)) for image in images])
        assert np.abs(ours - theirs.astype(float)).max() <= 1


@pytest.mark.parametrize("name", GEOMETRY)
def test_a_geometric_operation_is_that_of_pillow(images, name):
    for level in (-0.9, -0.3, 0.5):
        operation = jnp.full((DRAWN, BATCH), NAMES.index("identity")).at[0].set(NAMES.index(name))
        maps = affine_maps(operation, jnp.full((DRAWN, BATCH), level), side=SIDE)
        ours = np.asarray(warped(to_ours(images), maps)).transpose(3, 1, 2, 0)
        theirs = np.stack([np.asarray(by_pillow(Image.fromarray(image), name, level)) for image in images])
        # A place half-way between two pixels may round to either.
        assert (np.abs(ours - theirs.astype(float)).max(axis=3) > 0).mean() < 0.02


def test_two_geometric_operations_are_those_of_pillow_in_the_order_drawn(images):
    operation = jnp.stack([jnp.full(BATCH, NAMES.index(name)) for name in ("translate_x", "rotate")])
    ours = warped(to_ours(images), affine_maps(operation, jnp.full((DRAWN, BATCH), 0.6), side=SIDE))
    both = [by_pillow(by_pillow(Image.fromarray(image), "translate_x", 0.6), "rotate", 0.6) for image in images]
    wrong = np.asarray(ours).transpose(3, 1, 2, 0) != np.stack([np.asarray(image) for image in both])
    # Pixels that the first moves out of the image come back by the second; Pillow has lost them.
    assert wrong.any(axis=3).mean() < 0.05


def test_cutout_covers_a_grey_square_around_the_place_it_is_told(images):
    luck = jnp.array([[0.5, 0.0, 0.99], [0.5, 0.0, 0.99]])
    ours = np.asarray(cutout(luck, to_ours(images)))
    assert (ours[:, 8:24, 8:24, 0] == GREY).all()
    assert (ours[:, :8, :, 0] == to_ours(images)[:, :8, :, 0]).all()
    assert (ours[:, :8, :8, 1] == GREY).all()
    assert (ours[:, -9:, -9:, 2] == GREY).all()


def test_samples_of_a_batch_have_views_of_their_own_that_the_key_decides(images):
    same = jnp.repeat(to_ours(images)[..., :1], 40, axis=3)
    views = np.asarray(jax.jit(strong)(jax.random.key(0), same))
    np.testing.assert_array_equal(views, jax.jit(strong)(jax.random.key(0), same))
    assert len({view.tobytes() for view in views.transpose(3, 0, 1, 2)}) > 35
    assert views.min() >= 0
    assert views.max() <= 255
