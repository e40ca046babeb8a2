"""Decoding pictures, and the array files that are cached."""

import errno
import logging
import os
import signal
import struct
import subprocess
import sys
import warnings

import numpy as np
import pytest
from PIL import Image

from rscfed_jax.config import Config, SettingError
from rscfed_jax.data.load import load_dataset
from rscfed_jax.data.pictures import load_pictures
from tests.data.picture_files import write_classes, write_picture

pytestmark = pytest.mark.usefixtures("cache")
SEED = 1  # both classes are in its test set


@pytest.mark.parametrize("damaged", [b"", b"PK\x05\x06" + bytes(18), b"\x93NUMPY\x01\x00", None])
def test_an_array_file_that_is_damaged_is_made_anew(tmp_path, damaged, cache):
    write_classes(tmp_path / "pets")
    before = load_dataset(f"folder:{tmp_path}/pets", image_size=16, seed=SEED)
    for path in cache.iterdir():
        path.write_bytes(path.read_bytes()[:-9] if damaged is None else damaged)
    again = load_dataset(f"folder:{tmp_path}/pets", image_size=16, seed=SEED)
    np.testing.assert_array_equal(again.train_images, before.train_images)


def test_pictures_are_decoded_once_and_again_when_they_change(tmp_path, cache):
    folder = write_classes(tmp_path / "pets")
    first = load_dataset(f"folder:{folder}", image_size=16, seed=SEED)
    made = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert len(made) == 2
    again = load_dataset(f"folder:{folder}", image_size=16, seed=SEED)
    assert made == {path: path.stat().st_mtime_ns for path in cache.iterdir()}
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


def test_a_picture_that_does_not_decode_is_named_and_nothing_is_left_behind(tmp_path, cache):
    folder = write_classes(tmp_path / "pets")
    bad = folder / "dog" / "bad.jpg"
    for content in (b"", b"no picture", write_picture(tmp_path / "whole.jpg").read_bytes()[:300]):
        bad.write_bytes(content)
        with pytest.raises(SettingError, match=r"bad.jpg: does not decode as a picture"):
            load_dataset(f"folder:{folder}", image_size=16, seed=SEED)
        assert list(cache.iterdir()) == []


@pytest.mark.parametrize(("target", "said"), [("nowhere", "No such file"), ("lost.png", "Too many levels")])
def test_a_link_to_nothing_is_named(tmp_path, target, said):
    folder = write_classes(tmp_path / "pets")
    (folder / "cat" / "lost.png").symlink_to(target)
    with pytest.raises(SettingError, match=rf"lost.png: cannot be read: {said}"):
        load_dataset(f"folder:{folder}", image_size=16, seed=SEED)


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    folder = write_classes(tmp_path / "pets")
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(SettingError, match=r"cannot be written .*set XDG_CACHE_HOME"):
        load_dataset(f"folder:{folder}", image_size=16, seed=SEED)


def test_a_full_disk_is_found_before_it_is_written_to(tmp_path, cache, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(SettingError, match=r"cannot be written \(No space left on device\); set XDG_CACHE_HOME"):
        load_dataset(f"folder:{write_classes(tmp_path / 'pets')}", image_size=16, seed=SEED)
    assert list(cache.iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from rscfed_jax.config import Config
from rscfed_jax.data import pictures

pictures._read_picture = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
pictures.load_pictures([Path(sys.argv[1])], (16, 20), Config())
"""


def test_files_of_a_killed_process_are_removed_but_not_those_of_a_living_one(tmp_path, cache):
    picture = write_picture(tmp_path / "1.png")
    done = subprocess.run([sys.executable, "-c", KILLED, str(picture)])
    assert done.returncode == -signal.SIGKILL
    assert len(list(cache.glob("*.tmp"))) == 2
    others = [cache / f"key-16.{os.getpid()}.tmp", cache / "key-16.another.machine.999999999.tmp"]
    for path in others:
        path.touch()
    load_pictures([picture], (16,), Config())
    assert sorted(cache.glob("*.tmp")) == sorted(others)


def test_pillow_does_not_warn_beside_a_refusal(tmp_path, monkeypatch, capsys):
    """An odd EXIF block makes Pillow warn; warnings are errors here, so that one that gets through is seen."""
    config = Config(dataset="folder:pets")

    def warns(*_arguments, **_settings):
        warnings.warn("Corrupt EXIF data", stacklevel=1)
        return Image.new("RGB", (4, 4))

    (tmp_path / "a.png").write_bytes(b"anything")
    monkeypatch.setattr(Image, "open", warns)
    [loaded] = load_pictures([tmp_path / "a.png"], [8], config)
    assert loaded.shape == (1, 8, 8, 3)
    assert capsys.readouterr().err == ""


def test_pillow_prints_no_message_beside_a_refusal(tmp_path, monkeypatch, capsys):
    """Of a TIFF file with too many samples per pixel it logs one, which Python prints where nobody listens."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # those of pytest
    file = tmp_path / "a.tiff"
    write_picture(file)
    samples = struct.pack("<HHI", 277, 3, 1)  # the tag, its type and the number of its values
    content = file.read_bytes()
    assert content.count(samples) == 1
    place = content.index(samples) + len(samples)
    file.write_bytes(content[:place] + struct.pack("<H", 2048) + content[place + 2 :])
    with pytest.raises(SettingError, match="does not decode as a picture"):
        load_pictures([file], [8], Config(dataset="folder:pets"))
    assert capsys.readouterr().err == ""
