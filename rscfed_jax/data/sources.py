"""Data sets by name: one function each, NumPy only."""

import zipfile
import zlib
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rscfed_jax.config import SettingError

SYNTHETIC_DEFAULTS = {"train": 2000, "test": 500, "classes": 10, "size": 32, "channels": 3}
NPZ_KEYS = ("train_images", "train_labels", "test_images", "test_labels")
MAX_CLASSES = 10_000
MAX_SYNTHETIC_NUMBERS = 500_000_000
DATASETS = "fashion, npz:PATH or synthetic[:train=N,test=N,classes=N,size=N,channels=N]"


Refuse = Callable[[str], SettingError]


class Dataset(NamedTuple):
    """Images [S, H, W, C] as uint8 and labels [S] from 0 to classes - 1."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    classes: int


def load_dataset(name: str, *, data_dir: str | None = None, seed: int = 0) -> Dataset:
    """Loads a data set by the name that `--dataset` takes."""
    if name == "fashion":
        dataset = fashion()
    elif name == "synthetic" or name.startswith("synthetic:"):
        dataset = synthetic(seed=seed, **_synthetic_options(name))
    elif name.startswith("npz:"):
        dataset = from_npz(name, data_dir=data_dir, seed=seed)
    else:
        raise SettingError("dataset", name, f"must be {DATASETS}")
    if len(np.unique(dataset.test_labels)) < 2:
        raise SettingError("dataset", name, "the test set must hold samples of at least two classes: AUC needs them")
    return dataset


def fashion() -> Dataset:
    """12,000 training and 2,000 test images of Fashion-MNIST, balanced, 28x28 grey; embedded in the package."""
    with (
        resources.files("rscfed_jax.data").joinpath("fashion_mnist_14k.npz").open("rb") as file,
        np.load(file, allow_pickle=False) as arrays,
    ):
        parts = {key: arrays[key] for key in NPZ_KEYS}
    return Dataset(
        train_images=parts["train_images"][..., None],
        train_labels=parts["train_labels"].astype(np.int32),
        test_images=parts["test_images"][..., None],
        test_labels=parts["test_labels"].astype(np.int32),
        classes=10,
    )


def synthetic(*, train: int, test: int, classes: int, size: int, channels: int, seed: int) -> Dataset:
    """Gaussian blobs: each class is a smooth random picture, each sample that picture plus noise."""
    rng = np.random.default_rng([seed, 7])
    coarse = rng.normal(size=(classes, 4, 4, channels))
    repeat = -(-size // 4)
    pictures = coarse.repeat(repeat, axis=1).repeat(repeat, axis=2)[:, :size, :size]

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = (np.arange(count) % classes).astype(np.int32)
        rng.shuffle(labels)
        values = 128 + 30 * (pictures[labels] + rng.normal(size=(count, size, size, channels)))
        return np.clip(np.rint(values), 0, 255).astype(np.uint8), labels

    train_images, train_labels = draw(train)
    test_images, test_labels = draw(test)
    return Dataset(train_images, train_labels, test_images, test_labels, classes)


def _synthetic_options(name: str) -> dict[str, int]:
    options = dict(SYNTHETIC_DEFAULTS)
    _, _, text = name.partition(":")
    for part in filter(None, text.split(",")):
        key, _, value = part.partition("=")
        if key not in options or not value.isdecimal() or len(value) > 8 or int(value) < 1:
            known = ", ".join(SYNTHETIC_DEFAULTS)
            raise SettingError("dataset", name, f"{part!r} must be NAME=N with N of at least 1 and NAME one of {known}")
        options[key] = int(value)
    numbers = (options["train"] + options["test"]) * options["size"] ** 2 * options["channels"]
    if numbers > MAX_SYNTHETIC_NUMBERS:
        raise SettingError("dataset", name, f"would be {numbers:.2g} numbers, allowed are {MAX_SYNTHETIC_NUMBERS:.2g}")
    if options["classes"] < 2 or options["classes"] > min(options["train"], MAX_CLASSES):
        raise SettingError("dataset", name, f"classes must be from 2 to {MAX_CLASSES}, and not more than train")
    if options["channels"] not in (1, 3):
        raise SettingError("dataset", name, "channels must be 1 or 3")
    return options


def from_npz(name: str, *, data_dir: str | None, seed: int) -> Dataset:
    """A user's own images; without test arrays a seeded 80/20 split is made."""
    path = Path(data_dir or ".") / name.removeprefix("npz:")

    def refuse(reason: str) -> SettingError:
        return SettingError("dataset", name, f"{reason} (file {path})")

    arrays = read_npz(path, refuse)
    given = [key for key in NPZ_KEYS if key in arrays]
    if given not in (list(NPZ_KEYS), list(NPZ_KEYS[:2])):
        missing = ", ".join(key for key in NPZ_KEYS if key not in arrays)
        raise refuse(f"lacks {missing}; needed are train_images and train_labels, with both test arrays or neither")
    classes = _check_images(arrays["train_images"], arrays["train_labels"], "train", refuse)
    if classes < 2:
        raise refuse("train_labels must hold at least two classes, numbered from 0")
    if given == list(NPZ_KEYS):
        test_classes = _check_images(arrays["test_images"], arrays["test_labels"], "test", refuse)
        if test_classes > classes:
            raise refuse(f"test_labels holds {test_classes - 1}, but train_labels only 0 to {classes - 1}")
        if arrays["train_images"].shape[1:] != arrays["test_images"].shape[1:]:
            raise refuse("train_images and test_images must have the same height, width and channels")
    else:
        order = np.random.default_rng([seed, 8]).permutation(len(arrays["train_images"]))
        held_out, kept = np.split(order, [round(len(order) * 0.2)])
        for what in ("images", "labels"):
            arrays[f"test_{what}"] = arrays[f"train_{what}"][held_out]
            arrays[f"train_{what}"] = arrays[f"train_{what}"][kept]
    return Dataset(
        train_images=arrays["train_images"],
        train_labels=arrays["train_labels"].astype(np.int32),
        test_images=arrays["test_images"],
        test_labels=arrays["test_labels"].astype(np.int32),
        classes=classes,
    )


def read_npz(path: Path, refuse: Refuse) -> dict[str, np.ndarray]:
    """Reads all arrays of an npz file without unpickling; `refuse(reason)` makes the error to raise."""
    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise refuse("is not a readable npz file")
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                content = {key: arrays[key] for key in arrays.files}
    except FileNotFoundError:
        raise refuse("no such file") from None
    except SettingError:
        raise
    except ValueError as error:
        pickled = "allow_pickle" in str(error)
        raise refuse(
            "holds pickled objects, which are never read" if pickled else "is not a readable npz file"
        ) from None
    except (OSError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error, MemoryError):
        raise refuse("is not a readable npz file") from None
    foreign = [key for key, value in content.items() if not isinstance(value, np.ndarray)]
    if foreign:
        raise refuse(f"holds {foreign[0]!r}, which is no array")
    return content


def _check_images(images: np.ndarray, labels: np.ndarray, split: str, refuse: Refuse) -> int:
    """Refuses arrays that are not images with their labels; returns the number of classes."""
    if images.dtype != np.uint8:
        raise refuse(f"{split}_images must be uint8, not {images.dtype}")
    if images.ndim != 4 or images.shape[3] not in (1, 3) or 0 in images.shape[1:3]:
        raise refuse(f"{split}_images must have shape N,H,W,1 or N,H,W,3, not {','.join(map(str, images.shape))}")
    if not len(images):
        raise refuse(f"{split}_images holds no images")
    if labels.shape != images.shape[:1]:
        raise refuse(f"{split}_labels must be one number per image ({len(images)}), not of shape {labels.shape}")
    if labels.dtype.kind not in "iu":
        raise refuse(f"{split}_labels must be whole numbers, not {labels.dtype}")
    if labels.min() < 0 or labels.max() >= MAX_CLASSES:
        raise refuse(
            f"{split}_labels must be from 0 to classes - 1, fewer than {MAX_CLASSES}, "
            f"but holds {labels.min()} to {labels.max()}"
        )
    return int(labels.max()) + 1
