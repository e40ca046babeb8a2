"""Crop, flip and normalise on the device, against plain slices of the images."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rscfed_jax.core.augment import cropped, normalise
from rscfed_jax.core.pixels import unpack_pixels
from rscfed_jax.data.resize import resize
from rscfed_jax.data.table import pack_pixels
from tests.helpers import Tiny


@pytest.fixture(scope="module")
def tiny():
    return Tiny()


def test_packed_pixels_unpack_to_the_same_values():
    images = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), dtype=np.uint8)
    words = jnp.asarray(pack_pixels(images))
    np.testing.assert_array_equal(unpack_pixels(words.transpose(1, 2, 0)), images.transpose(3, 1, 2, 0))


@pytest.mark.parametrize("flip_rate", [0.0, 0.5, 1.0])
def test_views_are_crops_some_flipped_of_the_large_image(tiny, flip_rate):
    rows = jnp.array([0, 7, 7, 40])
    luck = jax.random.uniform(jax.random.key(1), (3, 4))
    pixels = cropped(luck, tiny.data.images, rows, size=16, flip_rate=flip_rate)
    normal = normalise(pixels, tiny.data.mean, tiny.data.std, jnp.float32)
    large = resize(tiny.federation.dataset.train_images[np.concatenate(tiny.federation.samples)], 20)
    for b, row in enumerate(rows.tolist()):
        top, left = (int(luck[i, b] * 5) for i in range(2))
        crop = large[row, top : top + 16, left : left + 16]
        if luck[2, b] < flip_rate:
            crop = crop[:, ::-1]
        np.testing.assert_array_equal(pixels[..., b], crop.transpose(2, 0, 1))
        expected = (crop - np.asarray(tiny.data.mean)) / np.asarray(tiny.data.std)
        np.testing.assert_allclose(normal[..., b], expected.transpose(2, 0, 1), atol=1e-5)


def test_every_place_of_a_crop_is_drawn_and_the_last_one_is_inside(tiny):
    rows = jnp.zeros(500, jnp.int32)
    luck = jax.random.uniform(jax.random.key(0), (3, 500))
    crops = np.asarray(cropped(luck, tiny.data.images, rows, size=16, flip_rate=0.0))
    assert len(np.unique(crops.reshape(-1, 500), axis=1).T) == 25
    largest = jnp.full((3, 1), 1 - 2**-23, jnp.float32)
    last = cropped(largest, tiny.data.images, rows[:1], size=16, flip_rate=0.0)
    np.testing.assert_array_equal(last, unpack_pixels(tiny.data.images[0, 4:, 4:, None]))
