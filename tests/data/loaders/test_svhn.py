"""SVHN from MATLAB files."""

import numpy as np
import pytest
from scipy.io import savemat

from rscfed_jax.config import SettingError
from rscfed_jax.data.load import load_dataset
from rscfed_jax.data.loaders import svhn
from tests.helpers import run


def write(folder, *, images=None, labels=(10, 3), name="train_32x32.mat", **more):
    if images is None:
        images = np.random.default_rng(0).integers(0, 256, (32, 32, 3, len(labels)), dtype=np.uint8)
    savemat(folder / name, {"X": images, "y": np.array(labels, np.uint8)[:, None]} | more)
    return images


@pytest.fixture
def folder(tmp_path):
    write(tmp_path)
    write(tmp_path, name="test_32x32.mat", labels=(1, 9))
    return tmp_path


def test_images_and_labels_are_read_exactly_and_ten_means_zero(folder):
    images = write(folder)
    data = load_dataset("svhn", data_dir=str(folder))
    np.testing.assert_array_equal(data.train_images, np.moveaxis(images, 3, 0))
    assert data.train_labels.tolist() == [0, 3]
    assert data.test_labels.tolist() == [1, 9]
    assert data.classes == 10
    assert data.mean[0] == pytest.approx(0.4376821)


def test_a_folder_of_its_own_is_found(tmp_path):
    (tmp_path / "svhn").mkdir()
    write(tmp_path / "svhn")
    write(tmp_path / "svhn", name="test_32x32.mat", labels=(1, 9))
    assert len(load_dataset("svhn", data_dir=str(tmp_path)).train_images) == 2


def test_what_is_missing_is_named_with_its_place(tmp_path):
    ways = r"there, from http://ufldl.stanford.edu/housenumbers, or use --download \(246 MB\)"
    with pytest.raises(SettingError, match=f"not found in .*; put train_32x32.mat and test_32x32.mat {ways}"):
        load_dataset("svhn", data_dir=str(tmp_path))
    write(tmp_path)
    with pytest.raises(SettingError, match=r"test_32x32.mat: no such file; .* use --download"):
        load_dataset("svhn", data_dir=str(tmp_path))


@pytest.fixture
def published(folder, server, monkeypatch):
    """The two files on a server instead of in the folder."""
    for name in ("train", "test"):
        path = folder / f"{name}_32x32.mat"
        monkeypatch.setattr(svhn, name.upper(), server.publish(path.name, path.read_bytes()))
        path.unlink()
    return server


def test_a_download_brings_both_files(published, folder):
    data = load_dataset("svhn", data_dir=str(folder / "new"), download=True)
    assert data.train_labels.tolist() == [0, 3]
    assert sorted(path.name for path in (folder / "new").iterdir()) == ["test_32x32.mat", "train_32x32.mat"]
    load_dataset("svhn", data_dir=str(folder / "new"), download=True)
    assert len(published.asked) == 2


def test_a_download_adds_the_file_that_is_missing_where_the_other_is(published, folder):
    (folder / "svhn").mkdir()
    write(folder / "svhn")
    load_dataset("svhn", data_dir=str(folder), download=True)
    assert [name for name, _ in published.asked] == ["test_32x32.mat"]
    assert (folder / "svhn" / "test_32x32.mat").exists()


def test_the_command_line_downloads_or_says_what_to_do_by_hand(published, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    flags = ["--download", "--clients", "1", "--min-client-size", "1"]
    assert run("data", "svhn", *flags) == 0
    assert "train_32x32.mat and test_32x32.mat in data" in capsys.readouterr().out
    published.files.clear()
    for command in (["data", "svhn"], ["train", "--dataset", "svhn"], ["grid", "--dataset", "svhn", "--set", "beta=1"]):
        assert run(*command, *flags, "--data-dir", "other") == 2
        said = capsys.readouterr().err.splitlines()
        assert f"put {svhn.TRAIN.url} and {svhn.TEST.url} into other (--data-dir) by hand" in said[-1]
    assert [path.name for path in folder.iterdir()] == ["data"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"labels": (0, 3)}, "labels from 1 to 10"),
        ({"labels": (11, 3)}, "labels from 1 to 10"),
        ({"images": np.zeros((28, 28, 3, 2), np.uint8)}, "X must be images 32,32,3,N, not 28,28,3,2"),
        ({"images": np.zeros((32, 32, 3, 2))}, "must be uint8, not float64"),
        ({"labels": (1, 2, 3), "images": np.zeros((32, 32, 3, 2), np.uint8)}, "one number per image"),
    ],
)
def test_wrong_arrays_are_refused(folder, change, reason):
    write(folder, **change)
    with pytest.raises(SettingError, match=reason) as error:
        load_dataset("svhn", data_dir=str(folder))
    assert "train_32x32.mat" in str(error.value)


def test_a_file_without_the_arrays_is_refused(folder):
    savemat(folder / "train_32x32.mat", {"Z": np.zeros(3)})
    with pytest.raises(SettingError, match="holds no array 'X'"):
        load_dataset("svhn", data_dir=str(folder))


@pytest.mark.parametrize("kept", [0, 1, 60, 200, 4000])
def test_a_truncated_file_is_refused(folder, kept):
    path = folder / "train_32x32.mat"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(SettingError, match=r"train_32x32.mat: (is not a readable MATLAB file|holds no array)"):
        load_dataset("svhn", data_dir=str(folder))
