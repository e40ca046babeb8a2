"""Your own pictures: a folder with one directory of picture files per class."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rscfed_jax.config import Config
from rscfed_jax.data.dataset import Dataset, Refuse, hold_out, refuse_file
from rscfed_jax.data.pictures import pictures_dataset

HELP = "a directory of pictures per class"
USAGE = "folder:PATH"
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp")


def load(config: Config) -> Dataset:
    """One directory of pictures per class, in PATH itself or in PATH/train and PATH/test."""
    root = Path(config.data_dir or ".") / config.dataset.removeprefix("folder:")
    refuse = refuse_file(config, root)
    if not root.is_dir():
        raise refuse("no such folder")
    if (root / "train").is_dir() and (root / "test").is_dir():
        names = _class_names(root / "train", refuse)
        strangers = set(_class_names(root / "test", refuse)) - set(names)
        if strangers:
            raise refuse(f"test holds the class {min(strangers)!r}, which train does not have")
        train, test = _files(root / "train", names, refuse), _files(root / "test", names, refuse)
        split = np.arange(len(train)), len(train) + np.arange(len(test))
        listed = train + test
    else:
        names = _class_names(root, refuse)
        listed = _files(root, names, refuse)
        split = hold_out(len(listed), config.seed)
    files, labels = [file for file, _ in listed], np.array([label for _, label in listed], np.int32)
    return pictures_dataset(config, files, labels, split, names, origin=f"{len(files)} pictures in {root}")


def _class_names(folder: Path, refuse: Refuse) -> list[str]:
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(names) < 2:
        raise refuse(
            f"{folder} must hold a folder of pictures for each of at least two classes, but holds {len(names)}"
        )
    return names


def _files(folder: Path, names: Sequence[str], refuse: Refuse) -> list[tuple[Path, int]]:
    """Each picture with the number of its class."""
    listed = []
    for label, name in enumerate(names):
        found = sorted(path for path in (folder / name).rglob("*") if path.suffix.lower() in ENDINGS)
        if not found and (folder / name).is_dir():
            raise refuse(f"the class {name!r} holds no picture ({', '.join(ENDINGS)})")
        listed += [(path, label) for path in found]
    return listed
