"""Strong views: their geometry against Pillow's, cutout, and what a whole view does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from rscfed_jax.core.augment import cropped
from rscfed_jax.core.colours import COLOURS, recoloured
from rscfed_jax.core.pixels import pack_pixels, unpack_pixels
from rscfed_jax.core.randaugment import (
    GEOMETRY,
    NAMES,
    STRONG_VIEWS,
    affine_maps,
    cutout,
    strong,
    torchssl,
    warped,
    with_colours,
)
from tests.helpers import Tiny

SIDE, BATCH = 32, 3
VARIANTS = pytest.mark.parametrize("view", [strong, torchssl], ids=["randaugment", "torchssl"])


@pytest.fixture(scope="module")
def images():
    """[B, H, W, 3] smooth pictures with some noise, one of low contrast."""
    rng = np.random.default_rng(0)
    waves = np.sin(np.linspace(0, 5, SIDE))[:, None, None] * np.linspace(0.3, 1, SIDE)[None, :, None]
    smooth = 128 + 90 * waves + rng.normal(0, 20, (BATCH, SIDE, SIDE, 3))
    smooth[1] = 100 + smooth[1] / 6
    return np.clip(smooth, 0, 255).astype(np.uint8)


def by_pillow(image, name, strength, *, whole, nudge=0.0):
    """The operation on one image: as in FixMatch, whose degrees and shifts are whole numbers, or in TorchSSL."""
    shift, degrees, shear = strength * 0.3 * SIDE, strength * 30, strength * 0.3 + nudge
    if whole:
        shift, degrees = int(shift), int(degrees)
    shift, degrees = shift + 32 * nudge, degrees + 60 * nudge
    maps = {
        "shear_x": (1, shear, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, shear, 1, 0),
        "translate_x": (1, 0, shift, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, shift),
    }
    if name == "rotate":
        return image.rotate(degrees)
    return image.transform(image.size, Image.Transform.AFFINE, maps[name])


def to_ours(images):
    return jnp.asarray(images.transpose(3, 1, 2, 0), jnp.float32)


def moved(images, names, strength, *, whole):
    """[B, H, W, 3] images after operations by name, all of one strength."""
    operation = jnp.stack([jnp.full(len(images), NAMES.index(name)) for name in names])
    maps = affine_maps(operation, jnp.full(operation.shape, strength, jnp.float32), side=SIDE, whole=whole)
    return np.asarray(warped(to_ours(images), maps)).transpose(3, 1, 2, 0)


@pytest.mark.parametrize("name", GEOMETRY)
@pytest.mark.parametrize("whole", [True, False])
def test_a_geometric_operation_is_that_of_pillow(images, name, whole):
    strengths = np.arange(-9, 10) / 10 if whole else np.linspace(-0.97, 0.98, 19)
    for strength in map(float, strengths):
        ours = moved(images, ["identity", name], strength, whole=whole)
        same = np.zeros(ours.shape[:3], bool)
        for nudge in (0.0, -1e-4, 1e-4):  # a place half-way between two pixels may round to either
            theirs = [by_pillow(Image.fromarray(image), name, strength, whole=whole, nudge=nudge) for image in images]
            same |= (ours == np.stack([np.asarray(image) for image in theirs])).all(axis=3)
            assert nudge or same.mean() > 0.93  # two lines at most
        assert same.all()


def test_geometric_operations_are_those_of_pillow_in_the_order_drawn(images):
    names = ("translate_x", "rotate", "shear_y")
    ours = moved(images, names, 0.6, whole=True)
    theirs = [Image.fromarray(image) for image in images]
    for name in names:
        theirs = [by_pillow(image, name, 0.6, whole=True) for image in theirs]
    # Pillow rounds to the nearest pixel each time, so compare smooth pictures, away from the corners.
    middle = slice(10, 22)
    difference = ours[:, middle, middle] - np.stack([np.asarray(image) for image in theirs])[:, middle, middle]
    reverse = moved(images, names[::-1], 0.6, whole=True)[:, middle, middle]
    assert np.abs(difference.mean()) < 2
    assert (difference == 0).mean() > 2 * (reverse == ours[:, middle, middle]).mean()


def test_each_sample_has_the_colours_that_it_drew_in_the_order_drawn(images):
    drawn = [("color", "equalize"), ("rotate", "solarize"), ("identity", "shear_x")]
    operation = jnp.array([[NAMES.index(name) for name in names] for names in drawn]).T
    strength = jnp.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])
    found = with_colours(to_ours(images), operation, strength)
    for b, names in enumerate(drawn):
        words = pack_pixels(to_ours(images)[..., b])
        for number, name in enumerate(names):
            colour = 1 + list(COLOURS).index(name) if name in COLOURS else 0
            words = recoloured(words, jnp.int32(colour), strength[number, b])
        np.testing.assert_array_equal(found[..., b], unpack_pixels(words))


def test_all_operations_at_once_are_those_one_by_one():
    """As on a GPU or TPU, but for the forms of equalize, which have their own test."""
    rng = np.random.default_rng(0)
    words = jnp.asarray(rng.integers(0, 2**24, (40, SIDE, SIDE)), jnp.uint32)
    colour = jnp.arange(40) % (1 + len(COLOURS))
    strength = jnp.asarray(rng.uniform(size=40), jnp.float32)
    at_once = jax.vmap(recoloured)(words, colour, strength)
    one_by_one = jax.lax.map(lambda drawn: recoloured(*drawn), (words, colour, strength))
    np.testing.assert_array_equal(at_once, one_by_one)


def test_cutout_covers_a_square_around_the_place_it_is_told(images):
    centre, share = jnp.array([[0.5, 0.0, 0.99], [0.5, 0.0, 0.99]]), jnp.array([0.5, 0.5, 0.25])
    ours = np.asarray(cutout(to_ours(images), centre=centre, share=share, fill=(125, 123, 114)))
    colour = np.array([125, 123, 114])[:, None, None]
    expected = np.array(to_ours(images))
    expected[:, 8:24, 8:24, 0] = colour
    expected[:, :8, :8, 1] = colour
    expected[:, -5:, -5:, 2] = colour
    np.testing.assert_array_equal(ours, expected)


@VARIANTS
def test_samples_of_a_batch_have_views_of_their_own_that_the_key_decides(images, view):
    same = jnp.repeat(to_ours(images)[..., :1], 40, axis=3)
    views = np.asarray(jax.jit(view)(jax.random.key(0), same))
    np.testing.assert_array_equal(views, jax.jit(view)(jax.random.key(0), same))
    assert len({v.tobytes() for v in views.transpose(3, 0, 1, 2)}) > 35
    assert views.min() >= 0
    assert views.max() <= 255


@VARIANTS
def test_a_view_within_the_crop_is_the_view_of_the_crop(view):
    tiny = Tiny()
    rows, key, luck = jnp.arange(40), jax.random.key(0), jax.random.uniform(jax.random.key(1), (3, 40))
    maps, paint = view.plan(key, batch=40, side=16)
    at_once = paint(cropped(luck, tiny.data.images, rows, size=16, flip_rate=0.5, maps=maps).astype(jnp.float32))
    crop = cropped(luck, tiny.data.images, rows, size=16, flip_rate=0.5).astype(jnp.float32)
    np.testing.assert_array_equal(at_once, view(key, crop))


def holes(view, number):
    """[number, H, W] whether the hole of a black image covers a pixel."""
    _, paint = view.plan(jax.random.key(0), batch=number, side=SIDE)
    fill = np.reshape(view.fill, (3, 1, 1, 1))
    return (np.asarray(paint(jnp.zeros((3, SIDE, SIDE, number)))) == fill).all(axis=0).transpose(2, 0, 1)


def test_variants_cut_holes_of_half_the_side_or_of_up_to_half():
    sides = {view: holes(view, 300).any(axis=1).sum(axis=1) for view in (strong, torchssl)}
    assert sides[strong].max() == SIDE // 2
    assert sides[strong].min() >= SIDE // 4
    assert sides[torchssl].max() < SIDE // 2
    assert 0.1 < (sides[torchssl] < 4).mean() < 0.45


def test_half_of_the_operations_of_fixmatch_and_all_of_torchssl_are_used():
    eye = jnp.eye(3)[:2, :, None]
    for view, still in ((strong, (1 - 0.5 * 5 / 14) ** 2), (torchssl, (1 - 5 / 14) ** 3)):
        maps, _ = view.plan(jax.random.key(0), batch=4000, side=SIDE)
        assert (jnp.abs(maps - eye) == 0).all(axis=(0, 1)).mean() == pytest.approx(still, abs=0.03)


def test_strong_views_have_names():
    assert list(STRONG_VIEWS) == ["randaugment", "torchssl", "weak"]
    assert hash(strong) != hash(torchssl)
