"""Npz files of all kinds, and files that are something else."""

import zipfile

import numpy as np
import pytest

from rscfed_jax.data.npzfile import read_npz

ARRAYS = {"a": np.arange(500), "b": np.ones((2, 3), np.uint8)}


@pytest.fixture
def path(tmp_path):
    np.savez(tmp_path / "mine.npz", **ARRAYS)
    return tmp_path / "mine.npz"


def test_arrays_are_read_by_name(path):
    content = read_npz(path, ValueError)
    assert content.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(content[name], array, strict=True)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        read_npz(tmp_path / "nothing.npz", ValueError)


def test_pickled_content_is_never_read(path):
    np.savez(path, a=np.array([{}] * 20))
    with pytest.raises(ValueError, match="pickled objects, which are never read"):
        read_npz(path, ValueError)


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 half"])
def test_another_file_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not a readable npz file"):
        read_npz(path, ValueError)


def test_a_truncated_file_is_refused(path):
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="is not a readable npz file"):
        read_npz(path, ValueError)


def test_an_entry_that_is_not_an_array_is_refused(path):
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("notes.txt", "hello")
    with pytest.raises(ValueError, match=r"holds 'notes.txt', which is not an array"):
        read_npz(path, ValueError)
