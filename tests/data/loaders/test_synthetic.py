"""Gaussian blobs."""

import numpy as np
import pytest

from rscfed_jax.config import SettingError
from rscfed_jax.data.load import load_dataset
from rscfed_jax.data.loaders.synthetic import SIZES, USAGE


def test_synthetic_has_the_size_that_its_name_says_and_follows_the_seed():
    name = "synthetic:train=40,test=10,classes=3,size=18,channels=1"
    one, same, other = (load_dataset(name, seed=seed) for seed in (0, 0, 1))
    assert one.train_images.shape == (40, 18, 18, 1)
    assert one.test_images.shape == (10, 18, 18, 1)
    assert set(one.train_labels) == {0, 1, 2}
    np.testing.assert_array_equal(one.train_images, same.train_images)
    assert (one.train_images != other.train_images).any()


def test_the_usage_gives_the_sizes_without_an_argument():
    assert "synthetic[:" + ",".join(f"{name}={size}" for name, size in SIZES.items()) + "]" == USAGE
    assert load_dataset("synthetic").train_images.shape == (2000, 32, 32, 3)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ("train=0", "'train=0' must be NAME=N"),
        ("colour=3", "NAME one of train, test, classes, size, channels"),
        ("train=" + "9" * 5000, "must be NAME=N"),
        ("channels=2", "channels must be 1 or 3"),
        ("classes=1", "classes must be from 2"),
        ("train=5,classes=6", "not more than train"),
        ("size=100000", "numbers; at most 5e"),
        ("test=1", "test set must hold samples of at least two classes"),
    ],
    ids=lambda text: text[:20],
)
def test_wrong_sizes_are_refused(sizes, reason):
    with pytest.raises(SettingError, match=reason):
        load_dataset(f"synthetic:{sizes}")
