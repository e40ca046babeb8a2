"""Pixels at given places: the forms of all platforms against plain indexing, and what is exported for each."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rscfed_jax.core.augment import MovingView, weak
from rscfed_jax.core.batches import Batches, holding_of
from rscfed_jax.core.method import Method
from rscfed_jax.core.pixels import (
    pack_pixels,
    places_by_gather,
    places_by_products,
    rectangles_by_gather,
    rectangles_by_products,
    unpack_pixels,
)
from rscfed_jax.core.randaugment import strong, torchssl
from tests.helpers import BATCH, Tiny

SIDE, SIZE, NUMBER = 7, 5, 4  # of the images, of the rectangles, of the batch
IMAGES = np.random.default_rng(0).integers(0, 2**24, (6, SIDE, SIDE), dtype=np.uint32)
VALUES = np.stack([(IMAGES >> shift) & 255 for shift in (0, 8, 16)])  # [3, I, R, R]
seeds = st.integers(0, 2**32 - 1)


def test_pixels_are_packed_without_loss():
    np.testing.assert_array_equal(unpack_pixels(pack_pixels(jnp.asarray(VALUES, jnp.float32))), VALUES)


@pytest.mark.parametrize("form", [rectangles_by_gather, rectangles_by_products])
@given(seed=seeds)
def test_rectangles_are_the_lines_and_columns_asked_for(form, seed):
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, len(IMAGES), NUMBER)
    y, x = rng.integers(0, SIDE, (2, SIZE, NUMBER))
    found = np.asarray(jax.jit(form)(IMAGES, rows, y, x))
    np.testing.assert_array_equal(jax.jit(form)(IMAGES[rows], None, y, x), found)
    for b, row in enumerate(rows):
        np.testing.assert_array_equal(found[..., b], VALUES[:, row][:, y[:, b]][:, :, x[:, b]])


@pytest.mark.parametrize("form", [places_by_gather, places_by_products])
@given(seed=seeds)
def test_places_outside_the_image_are_black(form, seed):
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, len(IMAGES), NUMBER)
    y, x = rng.integers(0, SIDE + 1, (2, SIZE, SIZE, NUMBER))
    framed = np.pad(VALUES, ((0, 0), (0, 0), (0, 1), (0, 1)))
    np.testing.assert_array_equal(jax.jit(form)(IMAGES, rows, y, x), framed[:, rows, y, x])


def lookups(platform, view):
    """A federation, the gathers of a batch as exported for a platform (slice, operand, result), and its scatters."""
    tiny = Tiny()
    algorithm = tiny.algorithm(method=Method(name="views", views={"calm": weak, "wild": view}))

    def take(key, data, hyper):
        batches = Batches(algorithm, holding_of(jnp.int32(1), data), data)
        return batches.take(key, batches.order(key), jnp.int32(0), hyper).views

    exported = jax.export.export(jax.jit(take), platforms=[platform])(jax.random.key(0), tiny.data, tiny.hyper)
    text = exported.mlir_module()
    shape = r"tensor<((?:\d+x)*)\w+>"
    found = re.findall(rf'"stablehlo\.gather".* slice_sizes = array<i64: ([\d, ]+)>.* : \({shape},.* -> {shape}', text)
    assert len(found) == text.count('"stablehlo.gather"')
    numbers = [[tuple(map(int, re.findall(r"\d+", part))) for part in gather] for gather in found]
    return tiny, numbers, text.count("stablehlo.scatter")


@pytest.mark.parametrize("view", [strong, torchssl])
def test_a_tpu_program_looks_up_no_single_pixels(view):
    assert isinstance(view, MovingView)
    tiny, gathers, scatters = lookups("tpu", view)
    side = tiny.data.images.shape[1]
    assert [slices for slices, operand, _ in gathers if operand == tiny.data.images.shape] == [(1, side, side)]
    others = [result for _, operand, result in gathers if operand != tiny.data.images.shape]
    assert all(np.prod(result) < 16 * 16 * BATCH for result in others)
    assert scatters == 0


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_other_platforms_gather_pixels_of_the_images_of_a_batch(platform):
    tiny, gathers, _ = lookups(platform, strong)
    side = tiny.data.images.shape[1]
    whole = [slices for slices, operand, _ in gathers if operand == tiny.data.images.shape]
    assert whole == [(1, side, side)]  # once for both views
    assert len([result for _, _, result in gathers if np.prod(result) == 16 * 16 * BATCH]) == 2
