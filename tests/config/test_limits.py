"""Limits on input files, and the variable that changes them."""

import io
import os
import zipfile

import numpy as np
import pytest

from rscfed_jax.config import SettingError, registry
from rscfed_jax.config.documents import parse_json
from rscfed_jax.config.files import open_regular, read_bounded
from rscfed_jax.config.limits import LIMITS, OverLimitError, check_limit, limit_of
from rscfed_jax.config.npzfile import WrongArrayError, check_packed, check_shapes, unpacked_size


@pytest.fixture
def limits(monkeypatch):
    """Sets the variable."""
    return lambda text: monkeypatch.setenv("RSCFED_JAX_LIMITS", text)


def test_limits_have_defaults_and_the_variable_changes_some(limits):
    assert [limit_of(name) for name in LIMITS] == [default for _, default in LIMITS.values()]
    limits("bytes=2GiB, pixels = 1e9,")
    assert limit_of("bytes") == 2**31
    assert limit_of("pixels") == 10**9
    assert limit_of("text") == LIMITS["text"].default


def test_a_machine_reads_files_of_half_its_memory():
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert limit_of("bytes") == pages // 2


@pytest.mark.parametrize("text", ["9", "byte=9", "bytes", "bytes=", "bytes=many", "bytes=-1", "bytes=0", "bytes=1e40"])
def test_a_wrong_limit_is_refused(limits, text):
    limits(text)
    with pytest.raises(SettingError, match=r"^RSCFED_JAX_LIMITS .*: must be "):
        limit_of("bytes")


def test_the_files_of_the_package_are_read_whatever_the_limits_are(limits):
    limits("config=1")
    assert "rscfed" in registry._declarations.__wrapped__(registry.METHODS)


def test_a_refusal_says_how_to_raise_the_limit(limits):
    limits("text=10")
    check_limit("text", 10)
    with pytest.raises(OverLimitError) as error:
        check_limit("text", 1234)
    assert str(error.value) == (
        "has 1,234 bytes, but at most 10 are allowed; to read it, set RSCFED_JAX_LIMITS=text=1234"
    )
    limits("text=1234")
    check_limit("text", 1234)


def test_a_file_is_read_up_to_its_limit(limits, tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 20)
    limits("text=20")
    assert read_bounded(tmp_path / "a", "text") == b"x" * 20
    limits("text=19")
    with pytest.raises(OverLimitError, match="has 20 bytes, but at most 19"):
        read_bounded(tmp_path / "a", "text")


def test_pipes_devices_and_folders_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, reason in ((tmp_path / "pipe", "Not a regular file"), ("/dev/zero", "Not a regular file")):
        with pytest.raises(OSError, match=reason):
            open_regular(path)
    with pytest.raises(IsADirectoryError):
        read_bounded(tmp_path, "text")


@pytest.mark.parametrize("text", ["[" * 100 + "]" * 100, '{"a":' * 99 + "[]" + "}" * 99, "[" + "[]," * 500 + "[]]"])
def test_json_within_the_limit_is_read(text):
    parse_json(text)
    parse_json(text.encode())


@pytest.mark.parametrize("text", ["[" * 101 + "]" * 101, '{"a":' * 150 + "1" + "}" * 150])
def test_json_that_is_too_deep_is_refused_unless_the_limit_is_raised(limits, text):
    with pytest.raises(OverLimitError, match=r"is nested in 1\d\d levels, but at most 100 .*RSCFED_JAX_LIMITS=depth="):
        parse_json(text)
    limits("depth=200")
    parse_json(text)


def test_json_a_mile_deep_is_refused(limits):
    limits("depth=1e9")
    for text in ("[" * 10**6, '{"a":' * 10**6):
        with pytest.raises(OverLimitError, match="nested too deeply for Python"):
            parse_json(text)


def npz_of(**members):
    """A zip file with members of these contents."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return file


def npy_of(shape, dtype, content=b""):
    """An array whose header says this."""
    file = io.BytesIO()
    header = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + content


def test_what_a_zip_file_unpacks_to_is_known_before(limits):
    file = npz_of(a=npy_of((10**6,), "|u1", bytes(10**6)))
    assert len(file.getvalue()) < 5000
    assert 10**6 < unpacked_size(file) < 10**6 + 200
    limits("bytes=1e6")
    with pytest.raises(OverLimitError, match=r"unpacks to 1,000,128 bytes, but at most 1,000,000 are allowed"):
        check_packed(file.getvalue())


@pytest.mark.parametrize("content", [b"PK", b"PK\x03\x04 and no more"])
def test_a_damaged_zip_file_is_refused(content):
    with pytest.raises(ValueError, match="is damaged"):
        check_packed(content)
    check_packed(b"something else")


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((10**12,), "|u1"), ((2**40, 2**40), "<f8"), ((10**18,), "<U0"), ((10**18,), "|V0"), ((5, 5), "<i8")],
)
def test_an_array_that_promises_more_than_its_bytes_is_refused(shape, dtype):
    with pytest.raises(WrongArrayError, match=r"holds a of shape [0-9,]+, but only \d+ bytes"):
        check_shapes(npz_of(a=npy_of(shape, dtype, bytes(8))))


def test_pickled_arrays_are_refused_before_they_are_read():
    with pytest.raises(WrongArrayError, match="pickled objects"):
        check_shapes(npz_of(a=npy_of((1,), "|O", b"never read")))


def test_arrays_that_hold_what_they_say_pass():
    check_shapes(npz_of(a=npy_of((2, 3), "<i4", bytes(24)), b=npy_of((0, 10**9), "|u1"), c=npy_of((), "<f8", bytes(8))))
