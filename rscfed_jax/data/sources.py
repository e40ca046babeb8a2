"""Data sets by name, and the two that need no files."""

from collections.abc import Callable
from importlib import resources
from typing import Any

import numpy as np

from rscfed_jax.config import Config, SettingError
from rscfed_jax.data.cifar import cifar10, cifar100
from rscfed_jax.data.dataset import MAX_CLASSES, Dataset, with_validation
from rscfed_jax.data.isic import isic2018
from rscfed_jax.data.npz import NPZ_KEYS, from_npz
from rscfed_jax.data.pictures import from_folder
from rscfed_jax.data.svhn import svhn

SYNTHETIC_DEFAULTS = {"train": 2000, "test": 500, "classes": 10, "size": 32, "channels": 3}
MAX_SYNTHETIC_NUMBERS = 500_000_000
FASHION_CLASSES = (
    *("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
)


def load_dataset(name: str, **settings: Any) -> Dataset:
    """Loads a data set by the name that `--dataset` takes; `settings` are those of `Config`."""
    return dataset_of(Config(dataset=name, **settings))


def dataset_of(config: Config) -> Dataset:
    """Loads the data set of a config."""
    kind, colon, _ = config.dataset.partition(":")
    if kind not in LOADERS or (bool(colon) != (kind in ("npz", "folder")) and kind != "synthetic"):
        raise SettingError("dataset", config.dataset, f"must be {DATASETS}")
    dataset = LOADERS[kind](config)
    if config.validation:
        dataset = with_validation(dataset, config.validation)
    if len(np.unique(dataset.test_labels)) < 2:
        raise SettingError(
            "dataset", config.dataset, "the test set must hold samples of at least two classes: AUC needs them"
        )
    return dataset


def fashion(config: Config) -> Dataset:
    """12,000 training and 2,000 test images of Fashion-MNIST, balanced, 28x28 grey; embedded in the package."""
    del config
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
        origin="embedded in the package",
        class_names=FASHION_CLASSES,
    )


def blobs(config: Config) -> Dataset:
    """The `synthetic` data set, with the sizes that its name asks for."""
    return synthetic(seed=config.seed, **_synthetic_options(config.dataset))


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


LOADERS: dict[str, Callable[[Config], Dataset]] = {
    "fashion": fashion,
    "svhn": svhn,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "isic2018": isic2018,
    "npz": from_npz,
    "folder": from_folder,
    "synthetic": blobs,
}
DATASETS = (
    "fashion, svhn, cifar10, cifar100, isic2018, npz:PATH, folder:PATH "
    "or synthetic[:train=N,test=N,classes=N,size=N,channels=N]"
)
