"""Gaussian blobs, drawn from the seed: for tests and quick trials, without files."""

import numpy as np

from rscfed_jax.config import Config, SettingError
from rscfed_jax.data.dataset import MAX_CLASSES, Dataset
from rscfed_jax.data.images import ImageSource

HELP = "Gaussian blobs"
USAGE = "synthetic[:train=2000,test=500,classes=10,size=32,channels=3]"
SIZES = {"train": 2000, "test": 500, "classes": 10, "size": 32, "channels": 3}
MAX_NUMBERS = 500_000_000  # of images that are held; more training images are made when they are asked for


def load(config: Config) -> Dataset:
    """Blobs of the sizes that the data set's name gives."""
    return synthetic(seed=config.seed, **_sizes(config.dataset))


def synthetic(*, train: int, test: int, classes: int, size: int, channels: int, seed: int) -> Dataset:
    """Gaussian blobs: each class is a smooth random picture, each sample that picture plus noise.

    Very many training samples are not held: the noise of each is drawn from the seed and its index.
    """
    rng = np.random.default_rng([seed, 7])
    coarse = rng.normal(size=(classes, 4, 4, channels))
    repeat = -(-size // 4)
    pictures = coarse.repeat(repeat, axis=1).repeat(repeat, axis=2)[:, :size, :size]

    def blobs(labels: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return np.clip(np.rint(128 + 30 * (pictures[labels] + noise)), 0, 255).astype(np.uint8)

    def draw_labels(count: int) -> np.ndarray:
        labels = (np.arange(count) % classes).astype(np.int32)
        rng.shuffle(labels)
        return labels

    def draw(labels: np.ndarray) -> np.ndarray:
        return blobs(labels, rng.normal(size=(len(labels), size, size, channels)))

    def make(index: np.ndarray) -> np.ndarray:
        """Images [n] of training samples, whoever asks for them and when."""
        noise = np.empty((len(index), size, size, channels), np.float32)
        for out, sample in zip(noise, index.tolist(), strict=True):
            np.random.Generator(np.random.Philox(key=[seed, sample])).standard_normal(out=out, dtype=np.float32)
        return blobs(train_labels[index], noise)

    train_labels, train_images = draw_labels(train), None
    if train * size**2 * channels <= MAX_NUMBERS:
        train_images = draw(train_labels)
    test_labels = draw_labels(test)
    test_images = draw(test_labels)
    made = ImageSource((train, size, size, channels), make, stored=False)
    return Dataset(made if train_images is None else train_images, train_labels, test_images, test_labels, classes)


def _sizes(name: str) -> dict[str, int]:
    sizes = dict(SIZES)
    _, _, text = name.partition(":")
    for part in filter(None, text.split(",")):
        key, _, value = part.partition("=")
        if key not in sizes or not value.isdecimal() or len(value) > 8 or int(value) < 1:
            known = ", ".join(SIZES)
            raise SettingError("dataset", name, f"{part!r} must be NAME=N with N of at least 1 and NAME one of {known}")
        sizes[key] = int(value)
    numbers = sizes["test"] * sizes["size"] ** 2 * sizes["channels"]
    if numbers > MAX_NUMBERS:
        reason = f"the test set would hold {numbers:.2g} numbers; at most {MAX_NUMBERS:.2g} are allowed"
        raise SettingError("dataset", name, reason)
    if sizes["classes"] < 2 or sizes["classes"] > min(sizes["train"], MAX_CLASSES):
        raise SettingError("dataset", name, f"classes must be from 2 to {MAX_CLASSES}, and not more than train")
    if sizes["channels"] not in (1, 3):
        raise SettingError("dataset", name, "channels must be 1 or 3")
    return sizes
