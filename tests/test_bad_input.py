"""Bad input to every command and in every file: exit code 2, one line, no traceback, nothing written."""

import contextlib
import io
import json
import pickle
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rscfed_jax.storage.arrays import read_arrays
from rscfed_jax.config import Config, Kind
from rscfed_jax.storage.run_directory import RunDirectory
from tests.conftest import assert_trees_equal
from tests.test_cli import run, save_npz

SETTINGS = Config.__dataclass_fields__

# Each must be refused before JAX starts; the last part is what the line must say.
TRAIN = [
    ("--drop-rate -0.1", "--drop-rate -0.1"),
    ("--drop-rate 1.1", "from 0 to 1"),
    ("--drop-rate often", "--drop-rate often"),
    ("--drop-rate nan", "--drop-rate nan"),
    ("--byzantine -1", "--byzantine -1"),
    ("--byzantine 11", "--clients 10"),
    ("--byzantine 1.5", "whole number"),
    ("--attack bribe", "noise, sign-flip, scale"),
    ("--attack=", "--attack"),
    ("--checkpoint-every 0", "--checkpoint-every 0"),
    ("--checkpoint-every x", "--checkpoint-every x"),
    ("--momentum 2", "from 0 to 1"),
    ("--weight-decay -1", "--weight-decay -1"),
    ("--clip-norm 0", "above 0"),
    ("--conv winograd", "auto, matmul, plain"),
    ("--seed 1e9", "whole number"),
    ("--seed 99999999999", "whole number"),
    ("--beta-labeled -1", "--beta-labeled -1"),
    ("--labeled-share none", "or off"),
    ("--ema -0.1", "--ema -0.1"),
    ("--tau -inf", "--tau"),
    ("--rounds 0x10", "whole number"),
    ("--rounds ١٢x", "whole number"),
    ("--flip=yes", "--flip"),
    ("--out", "expected one argument"),
    ("--resume=now", "--resume"),
    ("extra", "unrecognized arguments"),
    ("--dataset=", "--dataset"),
    ("--dataset synthetic:classes=1", "classes must be from 2"),
    ("--dataset synthetic:channels=2", "channels must be 1 or 3"),
    ("--dataset synthetic:train=99999999", "allowed are"),
    ("--dataset npz:", "--dataset npz:"),
    ("--dataset npz:folder", "not a readable npz"),
    ("--dataset npz:cut.npz", "not a readable npz"),
    ("--dataset npz:flipped.npz", "not a readable npz"),
    ("--dataset npz:nothing.npz", "not a readable npz"),
    ("--dataset npz:array.npz", "not a readable npz"),
    ("--dataset npz:noarray.npz", "no array"),
    ("--dataset npz:pickle.npz", "never read"),
    ("--dataset npz:lengths.npz", "one number per image"),
    ("--dataset npz:floats.npz", "whole numbers"),
    ("--dataset npz:one.npz", "at least two classes"),
    ("--dataset npz:more.npz", "test_labels holds"),
    ("--dataset npz:good.npz --data-dir folder", "no such file"),
    ("--dataset npz:good.npz --data-dir good.npz", "not a readable npz"),
    ("--partition-file folder", "--partition-file folder"),
    ("--partition-file cut.npz", "not a readable npz"),
    ("--partition-file good.npz", "10 arrays client_0"),
    ("--partition-file float.npz --clients 1 --subset-size 1", "list of sample indices"),
    ("--init-from folder", "not a run directory"),
    ("--init-from good.npz", "not a run directory"),
    ("--init-from list", "not readable JSON"),
    ("--init-from text.safetensors", "not a readable safetensors file"),
    ("--init-from nowhere.safetensors", "cannot be read: No such file"),
    ("--out finished --resume --method sso --beta 1", "method was rscfed and is sso, beta was 10000.0 and is 1.0"),
    ("--out finished --resume --drop-rate 0.5", "drop_rate was 0.0 and is 0.5"),
    ("--out finished --resume --rounds 99", "at least its 100 rounds"),
    ("--out finished", "holds a run already"),
    ("--out list --resume", "not readable JSON"),
    ("--out binary --resume", "not readable JSON"),
    ("--out parts", "no config.json"),
    ("--out parts --resume", "no config.json"),
    ("--out good.npz", "cannot be written"),
    ("--out good.npz/run --resume", "cannot be written"),
    ("--out /proc/nothing/run", "cannot be written"),
    ("--out dangling/run", "cannot be written"),
]
OTHERS = [
    ("evaluate", "required: path"),
    ("evaluate folder", "PATH folder: is not a run directory"),
    ("evaluate good.npz", "is not a run directory"),
    ("evaluate list", "not readable JSON"),
    ("evaluate binary", "not readable JSON"),
    ("evaluate wrong", "--rounds -5"),
    ("evaluate typed", "--lr-labeled fast"),
    ("evaluate finished --dataset none", "--dataset none"),
    ("evaluate finished --dataset npz:cut.npz", "not a readable npz"),
    ("evaluate finished --rounds 5", "unrecognized arguments"),
    ("evaluate finished finished", "unrecognized arguments"),
    ("data", "required: dataset"),
    ("data none", "--dataset none"),
    ("data npz:cut.npz", "not a readable npz"),
    ("data npz:pickle.npz", "never read"),
    ("data fashion --clients 0", "--clients 0"),
    ("data fashion --gamma none", "or iid"),
    ("data fashion --seed -1", "--seed -1"),
    ("data fashion --method sso", "unrecognized arguments"),
    ("data fashion --figure folder", "--figure folder"),
    ("data fashion --figure good.npz/p.png", "--figure good.npz/p.png"),
    ("data synthetic:train=5,classes=2 --min-client-size 9", "--min-client-size 9"),
    ("data fashion --export good.npz/p.npz", "--export good.npz/p.npz"),
    ("data svhn --data-dir mat", "train_32x32.mat: is not a readable MATLAB file"),
    ("data cifar10 --data-dir pickle", "asks for builtins.eval, which is never loaded"),
    ("data cifar100 --data-dir tar", "is damaged or incomplete"),
    ("data cifar100 --data-dir mat", "put cifar-100-python.tar.gz or cifar-100-binary.tar.gz"),
    ("data isic2018 --data-dir isic", "line 2: dx is 'flu'"),
    ("data folder:folder", "at least two classes"),
    ("data folder:pictures --image-size 16", "0.png: does not decode as a picture"),
    ("data npz:good.npz --partition-file text.pth", "--partition-file text.pth"),
    ("evaluate text.safetensors", "PATH text.safetensors: is not a readable safetensors file"),
    ("evaluate text.pth", "PATH text.pth: "),
    ("export", "required: RUN_DIR, FILE"),
    ("export finished", "required: FILE"),
    ("export folder new.safetensors", "RUN_DIR folder: is not a run directory"),
    ("export list new.safetensors", "not readable JSON"),
    ("export finished new.npz", "FILE new.npz: must end in"),
    ("export finished nowhere/new.safetensors", "must be a file in a folder that is there"),
    ("export finished text.safetensors", "is there already; add --force"),
    ("export finished new.safetensors --seed 1", "unrecognized arguments"),
    ("reproduce", "required: table"),
    ("reproduce table0", "TABLE table0: must be one of table1"),
    ("reproduce table1 --seeds 0", "--seeds 0"),
    ("reproduce table1 --seeds many", "--seeds many"),
    ("reproduce table1 --rounds 0", "fedavg_upper does not fit: --rounds 0"),
    ("reproduce table1 --dataset none", "--dataset none"),
    ("reproduce table1 --dataset npz:cut.npz", "not a readable npz"),
    ("reproduce table5 --method fedirm", "unrecognized arguments: --method fedirm"),
    ("reproduce table7 --clients 3", "unrecognized arguments: --clients 3"),
    ("reproduce table1 --model resnet18 --image-size 8", "--image-size 8"),
    ("reproduce table1 --out good.npz", "cannot be written"),
    ("reproduce table2 --out table", "summary.json there is not that of a run"),
    ("reproduce table2 --out table --rounds 10", "at least its 1000 rounds"),
    ("reproduce table2 --out table --beta 3", "beta was 10000.0 and is 3.0"),
    ("resume", "invalid choice"),
    ("--quiet", "required: COMMAND"),
]
CASES = [(f"train {line}", said) for line, said in TRAIN] + OTHERS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files and run directories with something wrong in each."""
    here = tmp_path_factory.mktemp("bad")
    (here / "folder").mkdir()
    (here / "dangling").symlink_to(here / "nowhere" / "else")
    save_npz(here / "good.npz")
    whole = (here / "good.npz").read_bytes()
    (here / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (here / "flipped.npz").write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    (here / "nothing.npz").write_bytes(b"")
    with (here / "array.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    shutil.copy(here / "good.npz", here / "noarray.npz")
    with zipfile.ZipFile(here / "noarray.npz", "a") as archive:
        archive.writestr("readme.txt", "hello")
    save_npz(here / "pickle.npz", test_labels=np.array([{}] * 8))
    save_npz(here / "lengths.npz", train_labels=np.arange(19) % 4)
    save_npz(here / "floats.npz", train_labels=np.arange(20.0) % 4)
    save_npz(here / "one.npz", train_labels=np.zeros(20, int))
    save_npz(here / "more.npz", test_labels=np.arange(8))
    np.savez(here / "float.npz", client_0=np.arange(5.0))
    good = Config().to_dict()
    runs = {
        "finished": json.dumps(good),
        "list": "[1]",
        "wrong": json.dumps(good | {"rounds": -5}),
        "typed": json.dumps(good | {"lr_labeled": "fast"}),
    }
    for name, text in runs.items():
        (here / name / "checkpoints").mkdir(parents=True)
        (here / name / "config.json").write_text(text)
    (here / "binary" / "checkpoints").mkdir(parents=True)
    (here / "binary" / "config.json").write_bytes(bytes(range(256)))
    cell = here / "table" / "cells" / "basic-seed0"
    cell.mkdir(parents=True)
    (cell / "config.json").write_text(json.dumps(Config(method="fed_consist", rounds=1000).to_dict()))
    (cell / "summary.json").write_text("{}")
    for name in ("text.safetensors", "text.pth", "mat/train_32x32.mat", "tar/cifar-100-python.tar.gz"):
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text("hello, this is no such file")
    for number in range(5):
        (here / "pictures" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        (here / "pictures" / "ab"[number % 2] / f"{number}.png").write_bytes(b"\x89PNG\r\n\x1a\n no more")
    batches = here / "pickle" / "cifar-10-batches-py"
    batches.mkdir(parents=True)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        (batches / name).write_bytes(pickle.dumps({b"data": eval}))
    (here / "isic").mkdir()
    (here / "isic" / "HAM10000_metadata.csv").write_text("lesion_id,image_id,dx\nL1,I1,flu\n")
    (here / "parts").mkdir()
    (here / "parts" / "metrics.jsonl").write_text("")
    return here


def everything_in(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def assert_refused(capsys, arguments):
    """Runs a command that must be refused and returns the line that it says."""
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert err.startswith("rscfed-jax")
    assert "error: " in err
    assert "Traceback" not in err
    return err


def test_the_table_is_long_enough():
    assert len({line for line, _ in CASES}) >= 60


@pytest.mark.parametrize(("line", "said"), CASES, ids=[line for line, _ in CASES])
def test_bad_input_is_refused_in_one_line_and_nothing_is_written(folder, tmp_path, monkeypatch, capsys, line, said):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = everything_in(folder)
    assert said in assert_refused(capsys, line.split(" "))
    assert everything_in(folder) == before
    assert [path for path in tmp_path.glob("rscfed_jax/**/*") if path.is_file()] == []


def run_quietly(*arguments):
    """Exit code and stderr of a command; hypothesis wants no fixture that changes between its examples."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = run(*arguments)
    return code, said.getvalue()


VALUES = st.one_of(
    st.integers().map(str),
    st.floats().map(str),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12),
)


class Taken(BaseException):  # which no handler of the program catches
    """The settings were right."""


def take(*_arguments, **_settings):
    """Stands where training would begin."""
    raise Taken


@given(name=st.sampled_from([name for name, field in SETTINGS.items() if field.type is not bool]), value=VALUES)
def test_any_value_of_any_flag_is_taken_or_refused_in_one_line(name, value):
    flag = "--" + name.replace("_", "-")
    kind: Kind = SETTINGS[name].metadata["kind"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunDirectory, "check", take)
        try:
            code, said = run_quietly("train", f"{flag}={value}")
        except Taken:
            assert kind.accepts(kind.read(value))
            return
    assert code == 2
    assert said.count("\n") == 1
    assert flag in said


# Where a file of random bytes is put, what it begins with, and who reads it.
READERS: dict[str, tuple[str, bytes, list[str]]] = {
    "npz": ("data.npz", b"", ["data", "npz:data.npz"]),
    "zip": ("data.npz", b"PK\x03\x04", ["data", "npz:data.npz"]),
    "partition": ("p.npz", b"", ["data", "synthetic:train=50,test=20,classes=2,size=4", "--partition-file", "p.npz"]),
    "torch partition": ("p.pth", b"PK\x03\x04", ["data", "fashion", "--partition-file", "p.pth"]),
    "mat": ("train_32x32.mat", b"", ["data", "svhn", "--data-dir", "."]),
    "mat 5": (
        "train_32x32.mat",
        b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM",
        ["data", "svhn", "--data-dir", "."],
    ),
    "pickle": ("cifar-100-python/train", b"\x80\x02", ["data", "cifar100", "--data-dir", "."]),
    "gzip": ("cifar-100-python.tar.gz", b"\x1f\x8b\x08", ["data", "cifar100", "--data-dir", "."]),
    "csv": ("HAM.csv", b"lesion_id,image_id,dx\n", ["data", "isic2018", "--data-dir", "."]),
    "safetensors": ("m.safetensors", b"", ["evaluate", "m.safetensors"]),
    "safetensors header": ("m.safetensors", b"\x20" + bytes(7) + b"{", ["train", "--init-from", "m.safetensors"]),
    "torch model": ("m.pth", b"PK\x03\x04", ["evaluate", "m.pth"]),
    "config": ("run/config.json", b"", ["evaluate", "run"]),
    "config of a run to resume": ("run/config.json", b"{", ["train", "--out", "run", "--resume"]),
    "config of a run to export": ("run/config.json", b"[", ["export", "run", "m.safetensors"]),
    "summary": ("t/cells/basic-seed0/summary.json", b"", ["reproduce", "table2", "--out", "t", "--dry-run"]),
}


@pytest.mark.parametrize("which", READERS)
@settings(max_examples=10)
@given(content=st.binary(max_size=300))
def test_random_bytes_as_input_files_are_refused_in_one_line(tmp_path_factory, which, content):
    name, start, arguments = READERS[which]
    here = tmp_path_factory.mktemp("random")
    (here / name).parent.mkdir(parents=True, exist_ok=True)
    (here / name).write_bytes(start + content)
    (here / "run" / "checkpoints").mkdir(parents=True, exist_ok=True)
    before = everything_in(here)
    with contextlib.chdir(here):
        code, said = run_quietly(*arguments)
    assert code == 2
    assert said.count("\n") == 1
    assert everything_in(here) == before


CHECKPOINT = {"clients.step": np.arange(4, dtype=np.int32), "model.l1": np.linspace(0, 1, 30).reshape(5, 6)}


@given(content=st.binary(max_size=300), start=st.sampled_from([b"", b"PK\x03\x04"]))
def test_random_bytes_are_no_checkpoint(tmp_path_factory, content, start):
    path = tmp_path_factory.mktemp("random") / "arrays.npz"
    path.write_bytes(start + content)
    with pytest.raises(Exception):  # noqa: B017, PT011 - the reader of checkpoints takes any
        read_arrays(path)


@given(position=st.floats(0, 1, exclude_max=True), mask=st.integers(1, 255))
def test_a_changed_byte_in_a_checkpoint_is_noticed_or_harmless(tmp_path_factory, position, mask):
    path = tmp_path_factory.mktemp("flip") / "arrays.npz"
    np.savez(path, **CHECKPOINT)
    content = bytearray(path.read_bytes())
    content[int(position * len(content))] ^= mask
    path.write_bytes(content)
    try:
        arrays = read_arrays(path)
    except Exception:  # the reader of checkpoints takes any
        return
    assert_trees_equal(arrays, CHECKPOINT)


@given(position=st.floats(0, 1, exclude_max=True), mask=st.integers(1, 255))
def test_a_changed_byte_in_an_npz_file_is_refused_or_harmless(tmp_path_factory, position, mask):
    here = tmp_path_factory.mktemp("flip")
    rng = np.random.default_rng(0)
    save_npz(here / "data.npz", train_images=rng.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8))
    content = bytearray((here / "data.npz").read_bytes())
    content[int(position * len(content))] ^= mask
    (here / "data.npz").write_bytes(content)
    flags = ["--clients", "2", "--min-client-size", "1", "--gamma", "iid"]
    code, said = run_quietly("data", f"npz:{here}/data.npz", *flags)
    assert code in (0, 2)
    assert said.count("\n") == (code == 2)
