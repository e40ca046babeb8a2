"""The type of a data set and its normalisation."""

import numpy as np
import pytest

from rscfed_jax.data.dataset import BATCH, Dataset, checked, normalisation, pixel_statistics

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("channels", [1, 3])
def test_statistics_equal_numpys(channels):
    images = RNG.integers(0, 256, (2 * BATCH + 5, 4, 6, channels), dtype=np.uint8)
    mean, std = pixel_statistics(images)
    np.testing.assert_allclose(mean, np.broadcast_to(images.mean((0, 1, 2)), 3), rtol=1e-6)
    np.testing.assert_allclose(std, np.broadcast_to(images.std((0, 1, 2)), 3), rtol=1e-6)


def test_statistics_of_bright_images_do_not_overflow():
    mean, std = pixel_statistics(np.full((BATCH, 20, 20, 3), 255, np.uint8))
    np.testing.assert_array_equal(mean, 255)
    np.testing.assert_array_equal(std, 1)


def test_constants_win_over_measured_statistics():
    images, labels = RNG.integers(0, 256, (4, 2, 2, 3), dtype=np.uint8), np.arange(4)
    dataset = Dataset(images, labels, images, labels, 4)
    np.testing.assert_array_equal(normalisation(dataset), pixel_statistics(images))
    mean, std = normalisation(dataset._replace(mean=(0.2, 0.4, 0.6), std=(0.1, 0.1, 0.2)))
    np.testing.assert_allclose(mean, [51, 102, 153], rtol=1e-6)
    np.testing.assert_allclose(std, [25.5, 25.5, 51], rtol=1e-6)


def test_a_callers_labels_become_int32_and_must_be_of_the_classes():
    images, labels = np.zeros((4, 2, 2, 3), np.uint8), np.arange(4)
    dataset = checked(Dataset(images, labels, images, labels, 4), ValueError)
    assert dataset.train_labels.dtype == dataset.test_labels.dtype == np.int32
    assert checked(dataset, ValueError) is dataset
    with pytest.raises(ValueError, match="train_labels hold 3, but classes is 3"):
        checked(dataset._replace(classes=3), ValueError)
    with pytest.raises(ValueError, match="class_names holds 3 names, but classes is 4"):
        checked(dataset._replace(class_names=("a", "b", "c")), ValueError)
