"""Your own images in one npz file.

It holds train_images, train_labels and, unless a seeded 80/20 split is wanted, test_images and test_labels. It may hold
train_clients, which says which client holds each training sample.
"""

import contextlib
from functools import lru_cache
from pathlib import Path

import numpy as np

from rscfed_jax.config import Config, SettingError
from rscfed_jax.data.dataset import Dataset, check_clients, check_images, hold_out, refuse_file
from rscfed_jax.data.images import Images, picked
from rscfed_jax.data.npzfile import read_npz

HELP = "your own arrays"
USAGE = "npz:PATH"
NAMES_CLIENTS = True
CLIENTS = "train_clients"
KEYS = ("train_images", "train_labels", "test_images", "test_labels")


def load(config: Config) -> Dataset:
    """The arrays of the file; without test arrays, a seeded fifth of the samples is the test set."""
    path = _path(config.dataset, config.data_dir)
    refuse = refuse_file(config, path)
    arrays = read_npz(path, refuse, mapped=["train_images"])
    given = [key for key in KEYS if key in arrays]
    if given not in (list(KEYS), list(KEYS[:2])):
        missing = ", ".join(key for key in KEYS if key not in arrays)
        raise refuse(f"lacks {missing}; needed are train_images and train_labels, with both test arrays or neither")
    classes = check_images(arrays["train_images"], arrays["train_labels"], "train", refuse)
    if classes < 2:
        raise refuse("train_labels must hold at least two classes, numbered from 0")
    images: Images = arrays["train_images"]
    clients = arrays.get(CLIENTS)
    if clients is not None:
        clients = check_clients(clients, len(arrays["train_images"]), refuse)
    if given == list(KEYS):
        test_classes = check_images(arrays["test_images"], arrays["test_labels"], "test", refuse)
        if test_classes > classes:
            raise refuse(f"test_labels holds {test_classes - 1}, but train_labels only 0 to {classes - 1}")
        if arrays["train_images"].shape[1:] != arrays["test_images"].shape[1:]:
            raise refuse("train_images and test_images must have the same height, width and channels")
    else:
        assert isinstance(images, np.ndarray)
        kept, held_out = hold_out(len(arrays["train_images"]), config.seed, clients=clients)
        clients = None if clients is None else clients[kept]
        for what in ("images", "labels"):
            arrays[f"test_{what}"] = arrays[f"train_{what}"][held_out]
        arrays["train_labels"] = arrays["train_labels"][kept]
        images = picked(images, kept)
    return Dataset(
        train_images=images,
        train_labels=arrays["train_labels"].astype(np.int32),
        test_images=arrays["test_images"],
        test_labels=arrays["test_labels"].astype(np.int32),
        classes=classes,
        origin=str(path),
        train_clients=clients,
    )


def count_clients(dataset: str, data_dir: str | None) -> int | None:
    """How many clients the file names; None if it names none, or cannot be read, which is for `load` to say."""
    path = _path(dataset, data_dir)
    with contextlib.suppress(OSError, ValueError):  # a ValueError: a path with a zero byte
        state = path.stat()
        return _count(path, (state.st_mtime_ns, state.st_size))
    return None


@lru_cache(maxsize=8)
def _count(path: Path, _state: tuple[int, int]) -> int | None:
    """The same, once for each state of a file: a grid makes many configs of one file."""
    try:
        ids = read_npz(path, lambda reason: SettingError("dataset", path, reason), only=[CLIENTS]).get(CLIENTS)
    except SettingError:
        return None
    return None if ids is None or not ids.size else len(np.unique(ids))


def _path(dataset: str, data_dir: str | None) -> Path:
    return Path(data_dir or ".") / dataset.removeprefix("npz:")
