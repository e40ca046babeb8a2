"""Gaussian blobs, drawn from the seed: for tests and quick trials, without files."""

import numpy as np

from rscfed_jax.config import Config, SettingError
from rscfed_jax.data.dataset import MAX_CLASSES, Dataset

HELP = "Gaussian blobs"
USAGE = "synthetic[:train=2000,test=500,classes=10,size=32,channels=3]"
SIZES = {"train": 2000, "test": 500, "classes": 10, "size": 32, "channels": 3}
MAX_NUMBERS = 500_000_000


def load(config: Config) -> Dataset:
    """Blobs of the sizes that the data set's name gives."""
    return synthetic(seed=config.seed, **_sizes(config.dataset))


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


def _sizes(name: str) -> dict[str, int]:
    sizes = dict(SIZES)
    _, _, text = name.partition(":")
    for part in filter(None, text.split(",")):
        key, _, value = part.partition("=")
        if key not in sizes or not value.isdecimal() or len(value) > 8 or int(value) < 1:
            known = ", ".join(SIZES)
            raise SettingError("dataset", name, f"{part!r} must be NAME=N with N of at least 1 and NAME one of {known}")
        sizes[key] = int(value)
    numbers = (sizes["train"] + sizes["test"]) * sizes["size"] ** 2 * sizes["channels"]
    if numbers > MAX_NUMBERS:
        raise SettingError("dataset", name, f"would hold {numbers:.2g} numbers; at most {MAX_NUMBERS:.2g} are allowed")
    if sizes["classes"] < 2 or sizes["classes"] > min(sizes["train"], MAX_CLASSES):
        raise SettingError("dataset", name, f"classes must be from 2 to {MAX_CLASSES}, and not more than train")
    if sizes["channels"] not in (1, 3):
        raise SettingError("dataset", name, "channels must be 1 or 3")
    return sizes
