"""The cases of `fuzz.py`: for each reader good files, changed at random, and the command that reads them."""

import io
import json
import pickle
import random
import struct
import tarfile
import zlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import safetensors.numpy
from PIL import Image

from rscfed_jax.config import SETTINGS, Config
from rscfed_jax.config.registry import METHODS

COMMANDS = ("train", "grid", "reproduce", "evaluate", "report", "data", "plan", "export")
WORDS = ["0", "1", "-1", "2", "10", "nan", "inf", "1e400", "x", "", "auto", "iid", "none", "true", "é", "a" * 999]
WORDS += ["99999999999999999999", "0.5", "1e-40", "../..", "run", "data.npz", "m.safetensors", "c.toml", "\udcff", "\n"]
WORDS += ["fashion", "synthetic", "npz:data.npz", "folder:pets", "sso", "./mine.py", "table1", "/dev/null", "--", "{}"]
MORE = ["--out", "--resume", "--quiet", "--set", "--seeds", "--dry-run", "--config", "--format", "--figure", "--export"]
MORE += ["--memory", "--flops", "--grid-devices", "--cells-at-once", "--coordinator", "--num-processes", "--process-id"]
METHOD = b'NUMBERS = {"n": (0.5, "0..1", "help")}\nSAMPLES = "all"\n\n\ndef method(config):\n    return None\n'
TOML = b'rounds = 3\nbeta = 100.0\nflip = true\ndataset = "synthetic"\n\n[grid]\ntau = [0.5, 1.0]\nseeds = 2\n'
LESIONS = "abcdefghijklmnopqrst"
TABLE = "lesion_id,image_id,dx\n" + "".join(f"L{name},{name},{('nv', 'mel')[ord(name) % 2]}\n" for name in LESIONS)
SMALL = ["--clients", "2", "--min-client-size", "1", "--gamma", "iid"]


class Case(NamedTuple):
    """A command and the files that it finds."""

    arguments: list[str]
    files: dict[str, bytes]


def changed(rng: random.Random, content: bytes) -> bytes:
    """The content with a few changes of a kind that readers stumble over; now and then none, or random bytes alone."""
    kind = rng.random()
    if kind < 0.1:
        return content if kind < 0.05 else rng.randbytes(rng.randrange(400))
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 5, 20))):
        place = rng.randrange(len(data) + 1)
        kind = rng.randrange(7)
        if kind == 0 and data:
            data[place % len(data)] ^= 1 << rng.randrange(8)
        elif kind == 1 and data:
            data[place % len(data)] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        elif kind == 2:
            del data[place:]
        elif kind == 3:
            del data[place : place + rng.randrange(1, 40)]
        elif kind == 4:
            data[place:place] = data[rng.randrange(len(data) + 1) :][: rng.randrange(1, 200)]
        elif kind == 5:
            data[place : place + 4] = struct.pack(rng.choice("<>") + "I", rng.choice((0, 2**31, 2**32 - 1, 10**9)))
        else:
            data[place : place + 8] = rng.randbytes(rng.randrange(9))
    return bytes(data)


def npz(rng: random.Random) -> bytes:
    """A data set of 20 images."""
    arrays = {
        "train_images": np.zeros((20, 4, 4, 3), np.uint8),
        "train_labels": np.arange(20) % 4,
        "test_images": np.zeros((8, 4, 4, 3), np.uint8),
        "test_labels": np.arange(8) % 4,
        "train_clients": np.array(["anna", "ben"] * 10),
    }
    left_out = rng.choice([*arrays, "", ""])
    file = io.BytesIO()
    save = np.savez_compressed if rng.random() < 0.5 else np.savez
    save(file, **{name: array for name, array in arrays.items() if name != left_out})
    return file.getvalue()


def picture(rng: random.Random) -> bytes:
    """A small picture in one of the formats."""
    file = io.BytesIO()
    mode = rng.choice(["RGB", "L", "P", "1"])
    formats = ["PNG", "BMP", "GIF", "TIFF", *(["JPEG", "WEBP"] if mode in ("RGB", "L") else [])]
    Image.new(mode, (5, 7)).save(file, rng.choice(formats))
    return file.getvalue()


def matlab(rng: random.Random) -> bytes:
    """Six images and their labels, packed or not."""

    def element(kind: int, content: bytes) -> bytes:
        return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)

    def matrix(name: bytes, shape: tuple[int, ...], values: bytes) -> bytes:
        parts = element(6, struct.pack("<II", 9, 0)) + element(5, struct.pack(f"<{len(shape)}i", *shape))
        whole = element(14, parts + element(1, name) + element(2, values))
        packed = zlib.compress(whole)
        return struct.pack("<II", 15, len(packed)) + packed if rng.random() < 0.5 else whole

    images, labels = matrix(b"X", (32, 32, 3, 6), bytes(6 * 3072)), matrix(b"y", (6, 1), bytes([1, 2, 10, 1, 2, 3]))
    return b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM" + images + labels


def batch(rng: random.Random) -> bytes:
    """A batch of CIFAR-100."""
    images = np.zeros((3, 3072), np.uint8)
    return pickle.dumps({b"data": images, b"fine_labels": [1, 2, 3]}, protocol=rng.choice((2, 3, 4)))


def archive(rng: random.Random) -> bytes:
    """CIFAR-100's archive."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=rng.choice(("w:gz", "w"))) as tar:
        for name in ("train", "test"):
            content = batch(rng)
            info = tarfile.TarInfo(f"cifar-100-python/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def partition(rng: random.Random) -> bytes:
    """Who holds which of 20 samples."""
    file = io.BytesIO()
    np.savez(file, client_0=np.arange(10), client_1=np.arange(10, 20))
    return file.getvalue()


def torch_file(rng: random.Random) -> bytes:
    """A partition or a model, in PyTorch's new or old format; with no PyTorch, which is then said, another file."""
    try:
        import torch
    except ImportError:
        return npz(rng)
    file = io.BytesIO()
    model = {"l1.weight": torch.zeros(3, 4), "l1.bias": torch.zeros(3, dtype=torch.float16)}
    content = rng.choice([model, {"data_partition": {0: [*range(10)], 1: [*range(10, 20)]}}])
    torch.save(content, file, _use_new_zipfile_serialization=rng.random() < 0.5)
    return file.getvalue()


def config(rng: random.Random) -> bytes:
    """The config.json of a run, one of its values replaced by another of any kind."""
    settings = Config().to_dict()
    values = [None, True, -1, 10**30, 1e300, float("nan"), "", "x", [], {}, [[]], {"a": 1}, "../../x", "./mine.py"]
    settings[rng.choice(list(settings))] = rng.choice(values)
    return json.dumps(settings).encode()


def metrics(rng: random.Random) -> bytes:
    """Three evaluated rounds, with anything in them."""
    values = [None, 0.5, 3, -1, "x", [], [0.5], {}, {"1": 0.2}, {"x": 1}, True, float("nan"), 10**25]
    names = ["round", "accuracy", "auc", "bytes_up", "client_weights", "client_accuracy", "kept_share_by_class", "more"]
    lines = []
    for number in range(3):
        record = {"round": number, "accuracy": 0.5, "auc": 0.5}
        if rng.random() < 0.5:
            record[rng.choice(names)] = rng.choice(values)
        lines.append(json.dumps(record))
    return "\n".join(lines).encode() + b"\n"


def tensors(rng: random.Random) -> bytes:
    """A model file."""
    return safetensors.numpy.save({"l1.weight": np.zeros((3, 4), np.float32), "l1.bias": np.zeros(3, np.float16)})


def stored_run(rng: random.Random) -> dict[str, bytes]:
    """All files of a run that a report reads."""
    confusion = [[3, 1], [0, 4]]
    summary = {"final": {"accuracy": 0.5}, "best": {"round": 2, "accuracy": 0.5}, "rounds": 2, "confusion": confusion}
    holders = {"class_names": ["a", "b"], "class_counts": [[1, 2], [3, 4]], "labels": [3, 0], "server": None}
    files = {
        "run/config.json": json.dumps(Config().to_dict()).encode(),
        "run/metrics.jsonl": metrics(rng),
        "run/summary.json": json.dumps(summary).encode(),
        "run/partition.json": json.dumps(holders).encode(),
    }
    name = rng.choice(list(files))
    files[name] = config(rng) if name == "run/config.json" and rng.random() < 0.5 else changed(rng, files[name])
    return files


def one_file(
    name: str, make: Callable[[random.Random], bytes], *commands: list[str], more: dict[str, bytes] | None = None
) -> Callable[[random.Random], Case]:
    """A target: one changed file, read by one of some commands."""

    def case(rng: random.Random) -> Case:
        return Case(rng.choice(commands), (more or {}) | {name: changed(rng, make(rng))})

    return case


def pictures(rng: random.Random) -> Case:
    """A folder of pictures, one of them changed. With this seed both classes are in the test set."""
    endings = ("png", "jpg", "bmp", "webp")
    root = rng.choice(["pets", "pets/clients/anna"])
    names = [f"{name}/{number}.{endings[number % 4]}" for name in ("cat", "dog") for number in range(10)]
    files = {f"{root}/{name}": picture(rng) for name in names}
    name = rng.choice(list(files))
    files[name] = changed(rng, files[name])
    more = ["--partition", "drawn", *SMALL] if rng.random() < 0.5 or "clients" not in root else []
    return Case(["data", "folder:pets", "--image-size", "16", "--seed", "1", *more], files)


def resumed(rng: random.Random) -> Case:
    """A run whose config is changed, to be resumed, repeated, evaluated or exported."""
    more = {"run/checkpoints/3/model/arrays.npz": changed(rng, npz(rng))}
    commands = [["train", "--out", "run", "--resume"], ["evaluate", "run"], ["export", "run", "m.safetensors"]]
    commands += [
        ["train", "--config", "run/config.json"],
        ["train", "--init-from", "run"],
        ["plan", "--config", "c.json"],
    ]
    content = config(rng) if rng.random() < 0.7 else changed(rng, config(rng))
    return Case(rng.choice(commands), more | {"run/config.json": content, "c.json": content})


def reported(rng: random.Random) -> Case:
    """A report of a run with a changed file."""
    return Case(["report", "run", "--format", rng.choice(["html", "md", "csv"])], stored_run(rng))


def flags(rng: random.Random) -> Case:
    """Any command with any flags."""
    own = [setting.flag for method in METHODS.declarations.values() for setting in method.settings]
    known = [setting.flag for setting in SETTINGS.values()] + own + MORE
    words = [rng.choice(COMMANDS)]
    for _ in range(rng.randrange(6)):
        flag, value = rng.choice(known), rng.choice(WORDS)
        if rng.random() < 0.3:
            value = f"{rng.choice(list(SETTINGS))}={value},{rng.choice(WORDS)}"
        words += rng.choice([[flag, value], [f"{flag}={value}"], [value], [flag]])
    files = {"data.npz": npz(rng), "m.safetensors": tensors(rng), "c.toml": TOML, "mine.py": METHOD}
    return Case([word.replace("\0", "") for word in words], files | stored_run(rng))


SYNTHETIC = ["data", "synthetic:train=20,test=20,classes=2,size=4", "--min-client-size", "1", "--clients", "2"]
TARGETS: dict[str, Callable[[random.Random], Case]] = {
    "npz": one_file(
        "data.npz", npz, ["data", "npz:data.npz", "--partition", "drawn", *SMALL], ["data", "npz:data.npz"]
    ),
    "pictures": pictures,
    "matlab": one_file(
        "train_32x32.mat",
        matlab,
        ["data", "svhn", "--data-dir", ".", *SMALL],
        more={"test_32x32.mat": matlab(random.Random(0))},
    ),
    "pickle": one_file(
        "cifar-100-python/train",
        batch,
        ["data", "cifar100", "--data-dir", ".", *SMALL],
        more={"cifar-100-python/test": batch(random.Random(0))},
    ),
    "archive": one_file("cifar-100-python.tar.gz", archive, ["data", "cifar100", "--data-dir", ".", *SMALL]),
    "table": one_file(
        "HAM.csv",
        lambda rng: TABLE.encode(),
        ["data", "isic2018", "--data-dir", ".", "--image-size", "16", *SMALL],
        more={f"{name}.jpg": picture(random.Random(1)) for name in LESIONS},
    ),
    "partition": one_file("p.npz", partition, [*SYNTHETIC, "--partition-file", "p.npz"]),
    "torch": one_file("p.pth", torch_file, [*SYNTHETIC, "--partition-file", "p.pth"], ["evaluate", "p.pth"]),
    "safetensors": one_file(
        "m.safetensors", tensors, ["evaluate", "m.safetensors"], ["train", "--init-from", "m.safetensors"]
    ),
    "run": resumed,
    "report": reported,
    "toml": one_file("a.toml", lambda rng: TOML, ["grid", "--config", "a.toml"], ["train", "--config", "a.toml"]),
    "method": one_file("mine.py", lambda rng: METHOD, ["train", "--method", "mine.py"], ["plan", "--model", "mine.py"]),
    "flags": flags,
}
