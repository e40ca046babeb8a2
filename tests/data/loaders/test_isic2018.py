"""ISIC 2018 from JPEG files and tables."""

import numpy as np
import pytest

from rscfed_jax.config import Config, SettingError
from rscfed_jax.data.load import load_dataset
from rscfed_jax.data.loaders.isic2018 import CLASSES, split_by_group
from tests.data.picture_files import write_picture

pytestmark = pytest.mark.usefixtures("cache")
IMAGES = [f"ISIC_{number:07}" for number in range(28)]


@pytest.fixture
def folder(tmp_path):
    """28 pictures of 14 lesions, two each, and two lesions of each class."""
    folder = tmp_path / "isic2018"
    for number, image in enumerate(IMAGES):
        write_picture(folder / "images" / f"{image}.jpg", seed=number)
    write_metadata(folder)
    return folder


def write_metadata(folder, rows=None):
    rows = rows or [f"HAM_{number // 2},{image},{CLASSES[number // 4]}" for number, image in enumerate(IMAGES)]
    (folder / "HAM10000_metadata.csv").write_text("\n".join(["lesion_id,image_id,dx", *rows]) + "\n")
    return rows


def write_one_hot(folder):
    (folder / "HAM10000_metadata.csv").unlink()
    rows = [
        ",".join([image, *("1.0" if number // 4 == label else "0.0" for label in range(7))])
        for number, image in enumerate(IMAGES)
    ]
    header = ",".join(["image", *(name.upper() for name in CLASSES)])
    (folder / "ISIC2018_Task3_Training_GroundTruth.csv").write_text("\n".join([header, *rows]) + "\n")


def load(folder, **settings):
    return load_dataset("isic2018", data_dir=str(folder), image_size=16, **settings)


def test_a_lesion_is_never_on_both_sides(folder):
    data = load(folder)
    # A class has two lesions of two pictures: both sides hold them by twos.
    assert set(np.bincount(data.train_labels, minlength=7)) <= {0, 2, 4}
    assert len(data.test_labels) == 6


def test_images_may_be_split_one_by_one(folder):
    data = load(folder, split="image", seed=1)
    assert (len(data.train_labels), len(data.test_labels)) == (22, 6)
    assert data.train_images.shape[1:] == (17, 17, 3)
    assert data.test_images.shape[1:] == (16, 16, 3)
    assert data.classes == 7


@pytest.mark.parametrize("seed", range(5))
def test_a_split_by_group_holds_out_about_a_fifth(seed):
    groups = np.random.default_rng(seed).integers(0, 60, 200)
    groups = np.unique(groups, return_inverse=True)[1]
    train, test = split_by_group(groups, seed)
    assert not set(groups[train]) & set(groups[test])
    assert sorted([*train, *test]) == list(range(200))
    assert 30 <= len(test) <= 40


def test_the_one_hot_table_gives_the_same_labels(folder):
    expected = load(folder, split="image")
    write_one_hot(folder)
    with pytest.raises(SettingError, match=r"no lesion_id for ISIC_0000000: .* or --split image"):
        load(folder)
    np.testing.assert_array_equal(load(folder, split="image").train_labels, expected.train_labels)
    rows = [f"{image},HAM_{number // 2},histo" for number, image in enumerate(IMAGES)]
    (folder / "ISIC2018_Task3_Training_LesionGroupings.csv").write_text("\n".join(["image,lesion_id,how", *rows]))
    assert set(np.bincount(load(folder).test_labels)) <= {0, 2, 4}


def test_the_authors_numbers_are_the_defaults():
    paper, published = (Config(dataset="isic2018", preset=preset) for preset in ("paper", "published"))
    for config in (paper, published):
        assert (config.model, config.image_size, config.batch_size) == ("resnet18", 224, 12)
        assert (config.lr_labeled, config.lr_unlabeled) == (0.002, 0.001)
        assert config.beta == config.beta_labeled == 0.01
    assert (paper.stem, paper.resize, paper.labeled_multiplier) == ("imagenet", 240, 1.0)
    assert (published.stem, published.resize, published.labeled_multiplier) == ("cifar", 250, 200.0)
    assert Config(dataset="isic2018", batch_size=7).batch_size == 7
    assert paper.replace(dataset="fashion").batch_size == 64


def rows_with(number, row):
    rows = [f"HAM_{n // 2},{image},{CLASSES[n // 4]}" for n, image in enumerate(IMAGES)]
    return [*rows[:number], *([row] if row else []), *rows[number + 1 :]]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (rows_with(3, "HAM_1,ISIC_0000099,nv"), "names ISIC_0000099, but there is no ISIC_0000099.jpg"),
        (rows_with(3, None), "has no row for .*ISIC_0000003.jpg"),
        (rows_with(3, "HAM_1,ISIC_0000002,nv"), "line 5: ISIC_0000002 has two rows"),
        (rows_with(3, "HAM_1,ISIC_0000003,wart"), "line 5: dx is 'wart', allowed are mel, nv"),
        (rows_with(3, "HAM_1,ISIC_0000003"), "line 5 has fewer columns than the first"),
    ],
)
def test_tables_and_files_must_agree(folder, cache, rows, reason):
    write_metadata(folder, rows)
    with pytest.raises(SettingError, match=reason) as error:
        load(folder)
    assert "HAM10000_metadata.csv" in str(error.value)
    assert not cache.exists()


def test_an_empty_table_and_a_broken_picture_are_refused(folder, cache):
    (folder / "HAM10000_metadata.csv").write_text("lesion_id,image_id,dx\n")
    with pytest.raises(SettingError, match="holds no rows"):
        load(folder)
    write_metadata(folder)
    (folder / "images" / f"{IMAGES[4]}.jpg").write_bytes(b"\xff\xd8 broken")
    with pytest.raises(SettingError, match=r"ISIC_0000004.jpg: does not decode"):
        load(folder)
    assert list(cache.iterdir()) == []


def test_what_is_missing_is_named_with_its_place(tmp_path):
    place = r"from https://doi.org/10.7910/DVN/DBW86T or https://challenge.isic-archive.com/data/#2018"
    with pytest.raises(SettingError, match=rf"not found in .*; put HAM10000_metadata.csv .* {place}: you must accept"):
        load_dataset("isic2018", data_dir=str(tmp_path), download=True)
