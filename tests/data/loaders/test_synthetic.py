"""Gaussian blobs."""

import numpy as np
import pytest

from rscfed_jax.config import Config, SettingError
from rscfed_jax.data.dataset import normalisation
from rscfed_jax.data.federation import build_federation
from rscfed_jax.data.images import ImageSource
from rscfed_jax.data.load import load_dataset
from rscfed_jax.data.loaders import synthetic
from rscfed_jax.data.loaders.synthetic import SIZES, USAGE
from rscfed_jax.data.table import train_table
from rscfed_jax.data.working_set import Holders


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


def test_very_many_images_are_made_when_they_are_asked_for(monkeypatch):
    name = "synthetic:train=3000,test=40,classes=3,size=8"
    held = load_dataset(name)
    monkeypatch.setattr(synthetic, "MAX_NUMBERS", 40 * 8 * 8 * 3)
    made = load_dataset(name)
    assert isinstance(made.train_images, ImageSource)
    assert made.train_images.shape == held.train_images.shape
    np.testing.assert_array_equal(made.train_labels, held.train_labels)
    some = np.array([2999, 7, 7])
    images = made.train_images[some]
    np.testing.assert_array_equal(images[1], made.train_images[7:8][0])
    np.testing.assert_array_equal(images, load_dataset(name).train_images[some])
    assert (images[0] != images[1]).any()
    assert (images != load_dataset(name, seed=1).train_images[some]).any()
    for own, other in zip(normalisation(made), normalisation(held), strict=True):
        np.testing.assert_allclose(own, other, rtol=0.02)
    federation = build_federation(Config(dataset=name, clients=1000, gamma="iid", min_client_size=3))
    table = Holders(federation, resize_to=10).table(
        np.array([3, 998]), rows=4, samples=12, always=np.array([998]), attackers=None
    )
    assert table["ids"][0, :2].tolist() == [3, 998]
    assert table["sizes"].tolist() == [[3, 3, 0, 0]]
    assert table["labeled_ids"].tolist() == [[1]]
    whole = train_table([federation], image_size=8, resize_to=10)
    start = whole["starts"][0, 998]
    np.testing.assert_array_equal(table["images"][3:6], whole["images"][whole["image_ids"][0, start : start + 3]])
    np.testing.assert_array_equal(table["labels"][0, 3:6], whole["labels"][0, start : start + 3])
