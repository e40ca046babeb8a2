"""MATLAB files against scipy, which writes them; and damaged ones, at which scipy's reader may crash."""

import io

import numpy as np
import pytest
from scipy.io import savemat

from rscfed_jax.data.matfile import HEADER, read_mat

RNG = np.random.default_rng(0)
ARRAYS = {
    "X": RNG.integers(0, 256, (4, 5, 3, 2), dtype=np.uint8),
    "y": np.arange(3, dtype=np.uint8)[:, None],
    "a_long_name_of_an_array": RNG.normal(size=(3, 3)),
    **{name: np.arange(6).reshape(2, 3).astype(name) for name in ("int8", "uint16", "int32", "int64", "float32")},
}


def content(*, compressed, arrays=ARRAYS):
    file = io.BytesIO()
    savemat(file, arrays, do_compression=compressed)
    return file.getvalue()


@pytest.mark.parametrize("compressed", [False, True])
def test_arrays_are_read_as_they_were_written(tmp_path, compressed):
    strangers = {"text": "hello", "cell": np.array([{"a": 1}, "b"], object), "empty": np.zeros((0, 2))}
    (tmp_path / "m.mat").write_bytes(content(compressed=compressed, arrays=strangers | ARRAYS))
    read = read_mat(tmp_path / "m.mat", tuple(ARRAYS))
    assert read.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)
    assert list(read_mat(tmp_path / "m.mat", ("y", "z"))) == ["y"]


@pytest.mark.parametrize("arrays", [{"X": np.ones(3) * 1j}, {"X": "text"}, {"X": np.array([{"a": 1}], object)}])
def test_what_is_no_array_of_real_numbers_is_refused(tmp_path, arrays):
    (tmp_path / "m.mat").write_bytes(content(compressed=False, arrays=arrays))
    with pytest.raises(ValueError, match="holds X, but not as an array of real numbers"):
        read_mat(tmp_path / "m.mat", ("X",))


@pytest.mark.parametrize("compressed", [False, True])
def test_a_damaged_file_is_read_or_refused(tmp_path, compressed):
    """Every byte of the small file is changed once, and the file is cut at every place."""
    whole = content(compressed=compressed, arrays={"X": ARRAYS["X"][:2, :2, :, :1], "y": ARRAYS["y"]})
    path = tmp_path / "m.mat"
    refused = 0
    for place in range(HEADER, len(whole)):
        for changed in (
            whole[:place],
            whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :],
            whole[:place] + bytes([whole[place] ^ 0x08]) + whole[place + 1 :],
        ):
            path.write_bytes(changed)
            try:
                read_mat(path, ("X", "y"))
            except ValueError:
                refused += 1
    assert refused > len(whole) - HEADER


@pytest.mark.parametrize("text", [b"", b"hello", b"MATLAB 7.3".ljust(124) + b"\x00\x02IM", bytes(15_000)])
def test_other_files_are_refused(tmp_path, text):
    (tmp_path / "m.mat").write_bytes(text)
    with pytest.raises(ValueError, match="is not in MATLAB's format 5"):
        read_mat(tmp_path / "m.mat", ("X",))
