"""Folders of pictures, and the array files that are made of them."""

import errno
import os

import numpy as np
import pytest
from PIL import Image

from rscfed_jax.config import SettingError
from rscfed_jax.data.pictures import cache_folder
from rscfed_jax.data.sources import load_dataset


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


SEED = 1  # with which both classes are tested on


def write_picture(path, seed=0, size=(30, 20)):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def write_classes(folder, *, count=10):
    for label, name in enumerate(("cat", "dog")):
        for number in range(count):
            write_picture(folder / name / f"{number:02}.png", seed=100 * label + number)
    return folder


def test_one_folder_per_class_is_split_80_to_20_and_resized_as_pillow_does(tmp_path):
    folder = write_classes(tmp_path / "pets")
    data = load_dataset("folder:pets", data_dir=str(tmp_path), image_size=16, seed=SEED)
    assert data.train_images.shape == (16, 20, 20, 3)
    assert data.test_images.shape == (4, 16, 16, 3)
    assert data.class_names == ("cat", "dog")
    expected = {
        Image.open(path).resize((16, 16), Image.Resampling.BILINEAR).tobytes(): path.parent.name
        for path in folder.rglob("*.png")
    }
    assert [expected[image.tobytes()] for image in data.test_images] == [
        data.class_names[label] for label in data.test_labels
    ]


def test_train_and_test_folders_are_the_split(tmp_path):
    write_classes(tmp_path / "pets" / "train", count=3)
    write_classes(tmp_path / "pets" / "test", count=2)
    data = load_dataset(f"folder:{tmp_path}/pets", image_size=16, seed=SEED)
    assert (data.train_labels.tolist(), data.test_labels.tolist()) == ([0, 0, 0, 1, 1, 1], [0, 0, 1, 1])
    write_picture(tmp_path / "pets" / "test" / "newt" / "1.png")
    with pytest.raises(SettingError, match="test holds the class 'newt', which train has not"):
        load_dataset(f"folder:{tmp_path}/pets", image_size=16, seed=SEED)


@pytest.mark.parametrize("damaged", [b"", b"PK\x05\x06" + bytes(18), b"\x93NUMPY\x01\x00", None])
def test_an_array_file_that_is_damaged_is_made_anew(tmp_path, damaged):
    write_classes(tmp_path / "pets")
    before = load_dataset(f"folder:{tmp_path}/pets", image_size=16, seed=SEED)
    for path in cache_folder().iterdir():
        path.write_bytes(path.read_bytes()[:-9] if damaged is None else damaged)
    again = load_dataset(f"folder:{tmp_path}/pets", image_size=16, seed=SEED)
    np.testing.assert_array_equal(again.train_images, before.train_images)


def test_pictures_are_decoded_once_and_again_when_they_change(tmp_path):
    folder = write_classes(tmp_path / "pets")
    first = load_dataset(f"folder:{folder}", image_size=16, seed=SEED)
    made = {path: path.stat().st_mtime_ns for path in cache_folder().iterdir()}
    assert len(made) == 2
    again = load_dataset(f"folder:{folder}", image_size=16, seed=SEED)
    assert made == {path: path.stat().st_mtime_ns for path in cache_folder().iterdir()}
    np.testing.assert_array_equal(first.train_images, again.train_images)
    write_picture(folder / "cat" / "00.png", seed=999, size=(31, 20))
    changed = load_dataset(f"folder:{folder}", image_size=16, seed=SEED)
    assert (
        np.concatenate([changed.train_images.ravel(), changed.test_images.ravel()])
        != np.concatenate([first.train_images.ravel(), first.test_images.ravel()])
    ).any()


def test_grey_and_transparent_pictures_become_colour(tmp_path):
    folder = write_classes(tmp_path / "pets")
    Image.new("L", (9, 9), 7).save(folder / "cat" / "grey.png")
    Image.new("RGBA", (9, 9), (1, 2, 3, 0)).save(folder / "cat" / "glass.png")
    assert load_dataset(f"folder:{folder}", image_size=16, seed=SEED).train_images.shape[3] == 3


def test_pictures_of_16_bits_keep_their_shades_and_those_of_32_are_refused(tmp_path):
    folder = write_classes(tmp_path / "pets")
    for path in folder.rglob("*.png"):
        Image.fromarray(np.full((9, 9), 257 * 40, np.uint16)).save(path)
    data = load_dataset(f"folder:{folder}", image_size=16, seed=SEED)
    assert (data.train_images == 40).all()
    Image.fromarray(np.ones((9, 9), np.float32)).save(folder / "cat" / "deep.tiff")
    (folder / "cat" / "deep.tiff").rename(folder / "cat" / "deep.png")
    with pytest.raises(SettingError, match=r"deep.png: has pixels of 32 bits \(mode F\)"):
        load_dataset(f"folder:{folder}", image_size=16, seed=SEED)


def test_a_picture_that_does_not_decode_is_named_and_nothing_is_left_behind(tmp_path):
    folder = write_classes(tmp_path / "pets")
    bad = folder / "dog" / "bad.jpg"
    for content in (b"", b"no picture", write_picture(tmp_path / "whole.jpg").read_bytes()[:300]):
        bad.write_bytes(content)
        with pytest.raises(SettingError, match=r"bad.jpg: does not decode as a picture"):
            load_dataset(f"folder:{folder}", image_size=16, seed=SEED)
        assert list(cache_folder().iterdir()) == []


def test_folders_without_pictures_are_refused(tmp_path):
    with pytest.raises(SettingError, match="no such folder"):
        load_dataset(f"folder:{tmp_path}/nowhere")
    with pytest.raises(SettingError, match="at least two classes, but holds 0"):
        load_dataset(f"folder:{tmp_path}")
    folder = write_classes(tmp_path / "pets")
    (folder / "unicorn").mkdir()
    with pytest.raises(SettingError, match="the class 'unicorn' holds no picture"):
        load_dataset(f"folder:{folder}")


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    folder = write_classes(tmp_path / "pets")
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(SettingError, match=r"cannot be written .*set XDG_CACHE_HOME"):
        load_dataset(f"folder:{folder}", image_size=16, seed=SEED)


def test_a_full_disk_is_found_before_it_is_written_to(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(SettingError, match=r"cannot be written \(No space left on device\); set XDG_CACHE_HOME"):
        load_dataset(f"folder:{write_classes(tmp_path / 'pets')}", image_size=16, seed=SEED)
    assert list(cache_folder().iterdir()) == []
