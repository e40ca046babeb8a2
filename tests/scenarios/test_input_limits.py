"""Files that are far larger than they look, or say so: refused in one line, quickly, by a limit that can be raised."""

import gzip
import io
import json
import os
import struct
import tarfile
import time
import zlib

import numpy as np
import pytest
import safetensors.numpy

from rscfed_jax.config import Config
from rscfed_jax.storage.checkpoint import FILE
from tests.helpers import run, save_npz

SMALL = ["--clients", "2", "--min-client-size", "1", "--gamma", "iid"]
RECORD = {"round": 1, "accuracy": 0.5}


def packed_npz(here):
    np.savez_compressed(here / "big.npz", train_images=np.zeros((10**4, 10, 10, 1), np.uint8))


def absurd_npz(here):
    """An array of a thousand terabytes in a file of some hundred bytes."""
    save_npz(here / "big.npz")
    whole = (here / "big.npz").read_bytes()
    (here / "big.npz").write_bytes(whole.replace(b"'shape': (20, 8, 8, 3), }", b"'shape': (9**9, 8, 8), } "))
    with pytest.MonkeyPatch.context() as patch:
        file = io.BytesIO()
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (10**15, 8, 8, 3)})
        patch.setattr(np.lib.format, "write_array", lambda target, *_, **__: target.write(file.getvalue()))
        np.savez(here / "big.npz", train_images=np.zeros(1))


def picture(here, header):
    for name in ("cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png"):
        (here / "pets" / name).parent.mkdir(parents=True, exist_ok=True)
        (here / "pets" / name).write_bytes(header)


def picture_of(side):
    """The header of a picture with this side, and no pixels."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    return lambda here: picture(here, content)


def matlab(here):
    packed = zlib.compress(bytes(10**6))
    content = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM" + struct.pack("<II", 15, len(packed)) + packed
    (here / "train_32x32.mat").write_bytes(content)
    (here / "test_32x32.mat").write_bytes(content)


def tar_of_zeros(here):
    """A member that nobody asked for comes first."""
    with tarfile.open(here / "cifar-100-python.tar.gz", "w:gz") as archive:
        info = tarfile.TarInfo("more")
        info.size = 10**6
        archive.addfile(info, io.BytesIO(bytes(10**6)))


def tar_header(here):
    """A name whose length is 4 GB, by its header."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 2**32
    with gzip.open(here / "cifar-100-python.tar.gz", "wb") as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT) + bytes(10**6))


def unpacked_cifar(here):
    (here / "cifar-100-python").mkdir()
    (here / "cifar-100-python" / "train").write_bytes(bytes(2000))


def isic_table(here):
    (here / "HAM10000_metadata.csv").write_text("lesion_id,image_id,dx\n" + "L,I,nv\n" * 300)


def safetensors_file(here):
    safetensors.numpy.save_file({"a": np.zeros(10**4, np.float32)}, here / "m.safetensors")


def run_of(here, **files):
    """A run directory whose files have these contents."""
    (here / "run" / "checkpoints").mkdir(parents=True)
    texts = {"config": json.dumps(Config().to_dict())} | files
    for name, text in texts.items():
        (here / "run" / f"{name}.{'jsonl' if name == 'metrics' else 'json'}").write_text(text)


def model_checkpoint(here):
    run_of(here)
    (here / "run" / "checkpoints" / "3" / "model").mkdir(parents=True)
    np.savez(here / "run" / "checkpoints" / "3" / "model" / FILE, a=np.zeros(10**4, np.float32))


def nested(levels):
    return "[" * levels + "]" * levels


def deep(**files):
    return lambda here: run_of(here, **files)


# What makes the files, the command, the limits, and what the line must say.
CASES = {
    "packed data": (
        packed_npz,
        "data npz:big.npz",
        "bytes=5e5",
        "big.npz: unpacks to 1,000,128 bytes, but at most 500,",
    ),
    "packed data as they are": (packed_npz, "data npz:big.npz", "bytes=2e6", "lacks train_labels"),
    "absurd shape": (absurd_npz, "data npz:big.npz", "", "holds train_images of shape 1000000000000000,8,8,3, but"),
    "packed partition": (
        packed_npz,
        "data fashion --partition-file big.npz",
        "bytes=5e5",
        "big.npz: unpacks to 1,000,",
    ),
    "huge picture": (
        picture_of(50_000),
        "data folder:pets",
        "",
        "has 2,500,000,000 pixels, but at most 100,000,000 are",
    ),
    "picture": (picture_of(200), "data folder:pets", "pixels=39999", "has 40,000 pixels, but at most 39,999 are"),
    "picture raised": (picture_of(200), "data folder:pets", "pixels=4e4", "does not decode as a picture"),
    "MATLAB": (
        matlab,
        "data svhn --data-dir .",
        "bytes=5e5",
        "train_32x32.mat: unpacks to at least 500,001 bytes, but",
    ),
    "MATLAB raised": (matlab, "data svhn --data-dir .", "", "train_32x32.mat: holds no array 'X'"),
    "archive": (
        tar_of_zeros,
        "data cifar100 --data-dir .",
        "bytes=5e5",
        "cifar-100-python.tar.gz: unpacks to at least",
    ),
    "archive raised": (tar_of_zeros, "data cifar100 --data-dir .", "", "must hold cifar-100-python/train"),
    "tar header": (tar_header, "data cifar100 --data-dir .", "bytes=5e5", "cifar-100-python.tar.gz: unpacks to at"),
    "tar header raised": (tar_header, "data cifar100 --data-dir .", "", "is damaged or incomplete"),
    "batch": (unpacked_cifar, "data cifar100 --data-dir .", "bytes=1000", "has 2,000 bytes, but at most 1,000 are"),
    "table": (
        isic_table,
        "data isic2018 --data-dir .",
        "text=1000",
        "HAM10000_metadata.csv: has 2,122 bytes, but at most",
    ),
    "model": (safetensors_file, "evaluate m.safetensors", "bytes=10000", "PATH m.safetensors: has 40,"),
    "checkpoint": (model_checkpoint, "export run m.safetensors", "bytes=10000", "checkpoints/3: has 40,"),
    "config a mile deep": (
        deep(config=nested(10**5)),
        "evaluate run",
        "",
        "config.json there is nested too deeply for",
    ),
    "config hundreds deep": (
        deep(config=json.dumps(Config().to_dict() | {"beta": json.loads(nested(800))})),
        "evaluate run",
        "",
        "config.json there is nested in 801 levels, but at most 100 are allowed; to read it, set RSCFED_JAX_LIMITS",
    ),
    "config too long": (
        deep(config=" " * 999),
        "train --out run --resume",
        "text=99",
        "there has 999 bytes, but at most",
    ),
    "metrics": (deep(metrics=json.dumps(RECORD) * 500), "report run", "text=9999", "metrics.jsonl: has 14,500"),
    "record": (
        deep(metrics=json.dumps(RECORD | {"more": json.loads(nested(800))})),
        "report run",
        "",
        "line 1 is nested in 801 levels",
    ),
    "summary": (
        deep(metrics=json.dumps(RECORD), summary='{"final": ' + nested(10**5) + "}"),
        "report run",
        "",
        "summary.json there is nested too deeply",
    ),
    "partition": (
        deep(metrics=json.dumps(RECORD), partition='{"class_counts": ' + nested(500) + "}"),
        "report run",
        "",
        "partition.json there is nested in 501 levels",
    ),
    "config file": (
        lambda here: (here / "c.toml").write_text("rounds = 3\n" * 10**5),
        "train --config c.toml",
        "",
        "c.toml: has 1,100,000 bytes, but at most 100,000 are allowed; to read it, set RSCFED_JAX_LIMITS=config=11",
    ),
    "method": (
        lambda here: (here / "mine.py").write_text("#" * 10**6),
        "train --method mine.py",
        "",
        "--method mine.py: has 1,000,000 bytes, but at most 100,000 are allowed",
    ),
    "wrong limit": (
        safetensors_file,
        "evaluate m.safetensors",
        "byte=3",
        "RSCFED_JAX_LIMITS byte=3: must be like bytes=",
    ),
    "wrong limit where no file is read": (
        lambda here: None,
        "plan --dataset synthetic",
        "depth",
        "RSCFED_JAX_LIMITS",
    ),
    "limit without a number": (
        isic_table,
        "data isic2018 --data-dir .",
        "text=big",
        "RSCFED_JAX_LIMITS big: must be a",
    ),
}
# Where a pipe that nobody writes to, and a device that never ends, stand for a file.
ENDLESS = {
    "data npz:endless": "endless: is not a readable npz file",
    "data fashion --partition-file endless": "--partition-file endless: is not a readable npz file",
    "evaluate endless.safetensors": "cannot be read: Not a regular file",
    "train --init-from endless.safetensors": "cannot be read: Not a regular file",
    "train --method ./endless": "--method endless: cannot be read: Not a regular file",
    "train --model ./endless": "--model endless: cannot be read: Not a regular file",
    "data svhn --data-dir mat": "train_32x32.mat: cannot be read: Not a regular file",
    "data cifar100 --data-dir tar": "is damaged or incomplete",
    "data folder:pets": "does not decode as a picture",
    "evaluate run": "not readable JSON",
    "report run": "not readable JSON",
}


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Runs a command that must be refused, and returns the line that it says."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def refused(line):
        more = SMALL if line.startswith("data npz:big") else []
        begun = time.monotonic()
        assert run(*line.split(), *more) == 2
        assert time.monotonic() - begun < 30
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert len(err) < 500
        return err

    return refused


@pytest.mark.parametrize("which", CASES)
def test_what_is_too_large_is_refused_in_one_line(refused, tmp_path, monkeypatch, which):
    make, line, limits, said = CASES[which]
    make(tmp_path)
    monkeypatch.setenv("RSCFED_JAX_LIMITS", limits)
    assert said in refused(line)


@pytest.mark.parametrize("line", ENDLESS)
@pytest.mark.parametrize("device", [False, True], ids=["pipe", "device"])
def test_what_never_ends_is_not_waited_for(refused, tmp_path, line, device):
    places = ["endless", "endless.safetensors", "mat/train_32x32.mat", "tar/cifar-100-python.tar.gz"]
    places += ["pets/cat/1.png", "pets/dog/1.png", "run/config.json"]
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for place in places:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).symlink_to("/dev/zero") if device else os.mkfifo(tmp_path / place)
    assert ENDLESS[line] in refused(line)


def test_a_run_resumes_from_a_checkpoint_of_its_own_that_is_larger_than_input_files_may_be(tmp_path, monkeypatch):
    from rscfed_jax.storage.checkpoint import Checkpoints

    monkeypatch.setenv("RSCFED_JAX_LIMITS", "bytes=1000")
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        checkpoints.save(1, {"state": {"a": np.arange(10**4)}}, accuracy={})
        checkpoints.wait()
        found = checkpoints.read(1, ("state",), pytest.fail, put_aside=True)
    assert found is not None
    np.testing.assert_array_equal(found["state"]["a"], np.arange(10**4))


def test_a_packed_checkpoint_is_damaged(tmp_path):
    from rscfed_jax.storage.checkpoint import read_arrays

    np.savez_compressed(tmp_path / FILE, a=np.zeros(10**5))
    with pytest.raises(ValueError, match="is compressed, which no checkpoint is"):
        read_arrays(tmp_path / FILE)
