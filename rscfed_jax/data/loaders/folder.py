"""Your own pictures: a folder with one directory of picture files per class, or with such directories per client."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rscfed_jax.config import Config
from rscfed_jax.data.dataset import Dataset, Refuse, hold_out, refuse_file
from rscfed_jax.data.pictures import pictures_dataset

HELP = "a directory of pictures per class"
USAGE = "folder:PATH"
NAMES_CLIENTS = True
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff")
SPLITS = ("test", "val", "valid", "validation")  # folders that hold a part of the samples, not a class

Listed = list[tuple[Path, int]]  # pictures, each with the number of its class


def load(config: Config) -> Dataset:
    """One directory of pictures per class: in PATH, in PATH/train and PATH/test, or in PATH/clients/CLIENT."""
    root = _root(config.dataset, config.data_dir)
    refuse = refuse_file(config, root)
    if not root.is_dir():
        raise refuse("no such folder")
    parts, owners = _directories(root), None
    if {*parts} - {"test"} == {"clients", "train"}:
        raise refuse("holds both clients and train; must hold one of them")
    has_test = {"train", "test"} <= {*parts} or parts == ["clients", "test"]
    if not (has_test or _names_clients(parts)) and (found := [part for part in parts if part in SPLITS]):
        also = "PATH/train and PATH/test, or PATH/clients and PATH/test"
        raise refuse(f"holds a folder {found[0]!r}, which is no class; test samples are read from {also}")
    if _names_clients(parts):
        names, train, owners = _of_clients(root / "clients", refuse)
    else:
        folder = root / "train" if has_test else root
        names = _class_names(folder, refuse)
        train = _files(folder, names, refuse)
    if has_test:
        strangers = set(_class_names(root / "test", refuse)) - set(names)
        if strangers:
            raise refuse(f"test holds the class {min(strangers)!r}, which train does not have")
        listed = train + _files(root / "test", names, refuse)
        split = np.arange(len(train)), np.arange(len(train), len(listed))
    else:
        listed = train
        split = hold_out(len(listed), config.seed, clients=owners)
    files, labels = [file for file, _ in listed], np.array([label for _, label in listed], np.int32)
    dataset = pictures_dataset(config, files, labels, split, names, origin=f"{len(files)} pictures in {root}")
    return dataset if owners is None else dataset._replace(train_clients=owners[split[0]])


def count_clients(dataset: str, data_dir: str | None) -> int | None:
    """How many clients the folder names; None if it names none, or cannot be read, which is for `load` to say."""
    root = _root(dataset, data_dir)
    with contextlib.suppress(OSError, ValueError):  # a ValueError: a path with a zero byte
        return (len(_directories(root / "clients")) or None) if _names_clients(_directories(root)) else None
    return None


def _root(dataset: str, data_dir: str | None) -> Path:
    return Path(data_dir or ".") / dataset.removeprefix("folder:")


def _directories(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _names_clients(parts: Sequence[str]) -> bool:
    """Whether a folder with these directories has one for each client; beside others, `clients` is a class."""
    return list(parts) in (["clients"], ["clients", "test"])


def _of_clients(folder: Path, refuse: Refuse) -> tuple[list[str], Listed, np.ndarray]:
    """Names of the classes that any client has, the pictures, and [S] the client that holds each."""
    clients = _directories(folder)
    if not clients:
        raise refuse("clients must hold a folder for each client")
    names = sorted({name for client in clients for name in _directories(folder / client)})
    _check_class_names(names, folder, refuse)
    listed, owners = [], []
    for client in clients:
        own = [(path, label) for label, name in enumerate(names) for path in _pictures(folder / client / name)]
        if not own:
            raise refuse(f"the client {client!r} holds no picture ({', '.join(ENDINGS)}) in a folder of a class")
        listed += own
        owners += [client] * len(own)
    if empty := set(range(len(names))) - {label for _, label in listed}:
        raise refuse(f"the class {names[min(empty)]!r} holds no picture ({', '.join(ENDINGS)})")
    return names, listed, np.array(owners)


def _class_names(folder: Path, refuse: Refuse) -> list[str]:
    names = _directories(folder)
    _check_class_names(names, folder, refuse)
    return names


def _check_class_names(names: Sequence[str], folder: Path, refuse: Refuse) -> None:
    if len(names) < 2:
        raise refuse(
            f"{folder} must hold a folder of pictures for each of at least two classes, but holds {len(names)}"
        )


def _files(folder: Path, names: Sequence[str], refuse: Refuse) -> Listed:
    listed = []
    for label, name in enumerate(names):
        found = _pictures(folder / name)
        if not found and (folder / name).is_dir():
            raise refuse(f"the class {name!r} holds no picture ({', '.join(ENDINGS)})")
        listed += [(path, label) for path in found]
    return listed


def _pictures(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS)
