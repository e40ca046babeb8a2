"""Resizing, packing, hiding labels, and augmentation on the device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from rscfed_jax.config import Config
from rscfed_jax.data.augment import augmented_batch, normalise, unpack_pixels
from rscfed_jax.data.dataset import pixel_statistics
from rscfed_jax.data.federation import build_federation
from rscfed_jax.data.resize import resize
from rscfed_jax.data.table import ALIGNMENT, HIDDEN, pack_pixels, to_device
from tests.conftest import LABELED, SIZES, ragged_federation

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("side", "new_side"), [(32, 40), (28, 32), (28, 40), (64, 40), (33, 20), (32, 32)])
@pytest.mark.parametrize("channels", [1, 3])
def test_resizing_equals_pillows_bilinear(side, new_side, channels):
    images = RNG.integers(0, 256, (3, side, side, channels), dtype=np.uint8)
    ours = resize(images, new_side)
    for image, resized in zip(images, ours, strict=True):
        picture = Image.fromarray(image.squeeze()).resize((new_side, new_side), Image.Resampling.BILINEAR)
        expected = np.asarray(picture).reshape(resized.shape)
        np.testing.assert_array_equal(resized, expected)


def test_resizing_takes_oblong_images():
    images = RNG.integers(0, 256, (2, 15, 20, 3), dtype=np.uint8)
    expected = np.asarray(Image.fromarray(images[0]).resize((12, 12), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(resize(images, 12)[0], expected)


def test_packed_pixels_unpack_to_the_same_values():
    images = RNG.integers(0, 256, (4, 5, 6, 3), dtype=np.uint8)
    assert pack_pixels(images).ctypes.data % ALIGNMENT == 0
    words = jnp.asarray(pack_pixels(images))
    np.testing.assert_array_equal(unpack_pixels(words.transpose(1, 2, 0)), images.transpose(3, 1, 2, 0))
    grey = pack_pixels(images[..., :1])
    np.testing.assert_array_equal(unpack_pixels(jnp.asarray(grey))[2], images[..., 0])


def test_statistics_equal_numpys():
    images = RNG.integers(0, 200, (5, 4, 4, 3), dtype=np.uint8)
    mean, std = pixel_statistics(images)
    np.testing.assert_allclose(mean, images.mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(std, images.std((0, 1, 2)), rtol=1e-6)


def test_rows_are_sorted_by_client_and_labels_of_unlabeled_clients_are_not_on_the_device():
    federation = ragged_federation()
    data, test = to_device(federation, image_size=16)
    assert data.images.shape == (sum(SIZES), 20, 20)
    assert test.images.shape == (30, 16, 16)
    for client, (start, size) in enumerate(zip(data.starts.tolist(), SIZES, strict=True)):
        labels = np.asarray(data.labels[start : start + size])
        rows = federation.members[client]
        expected = federation.dataset.train_labels[rows] if LABELED[client] else np.full(size, HIDDEN)
        np.testing.assert_array_equal(labels, expected)
    assert data.labeled_ids.tolist() == [1, 4]


def test_grey_images_are_repeated_and_resized():
    config = Config(dataset="synthetic:train=60,test=20,classes=3,size=28,channels=1", clients=2, subset_size=2)
    data, test = to_device(build_federation(config), image_size=32)
    assert data.images.shape[1:] == (40, 40)
    red, green, blue = unpack_pixels(test.images)
    np.testing.assert_array_equal(red, green)
    np.testing.assert_array_equal(red, blue)


@pytest.mark.parametrize("flip_rate", [0.0, 0.5, 1.0])
def test_augmentation_crops_flips_and_normalises(flip_rate):
    federation = ragged_federation()
    data, _ = to_device(federation, image_size=16)
    rows = jnp.array([0, 7, 7, 40])
    luck = jax.random.uniform(jax.random.key(1), (3, 4))
    ours = augmented_batch(luck, data, rows, size=16, flip_rate=flip_rate, dtype=jnp.float32)
    large = resize(federation.dataset.train_images[np.concatenate(federation.members)], 20)
    for b, row in enumerate(rows.tolist()):
        top, left = (int(luck[i, b] * 5) for i in range(2))
        crop = large[row, top : top + 16, left : left + 16]
        if luck[2, b] < flip_rate:
            crop = crop[:, ::-1]
        expected = (crop - np.asarray(data.mean)) / np.asarray(data.std)
        np.testing.assert_allclose(ours[..., b], expected.transpose(2, 0, 1), atol=1e-5)


def test_every_place_of_a_crop_is_drawn():
    data, _ = to_device(ragged_federation(), image_size=16)
    rows = jnp.zeros(2000, jnp.int32)
    luck = jax.random.uniform(jax.random.key(0), (3, 2000))
    crops = augmented_batch(luck, data, rows, size=16, flip_rate=0.0, dtype=jnp.float32)
    assert len(np.unique(np.asarray(crops).reshape(-1, 2000), axis=1).T) == 25
    extreme = jnp.full((3, 2000), 1 - 2**-23, jnp.float32)
    last = augmented_batch(extreme, data, rows, size=16, flip_rate=0.0, dtype=jnp.float32)
    pixels = unpack_pixels(data.images[0, 4:, 4:, None])
    np.testing.assert_allclose(last[..., 0], normalise(pixels, data.mean, data.std, jnp.float32)[..., 0], atol=1e-6)
