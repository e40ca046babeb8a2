"""The type of a data set, and helpers that its loaders share."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rscfed_jax.config import Config, SettingError
from rscfed_jax.data.images import Images, ImageSource

DEFAULT_FOLDER = "data"
MAX_CLASSES = 10_000
BATCH = 64  # images that are summed at once: they fit the cache, and their sums of squares 32 bits
HELD_OUT = 0.2  # part of the samples for the test set, if a data set has no split of its own

Refuse = Callable[[str], SettingError]


class Dataset(NamedTuple):
    """Images [S, H, W, C] as uint8 and labels [S] from 0 to classes - 1."""

    train_images: Images  # an array, or a source of images that are not held
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    classes: int
    # Images are normalised with these fractions of the largest pixel value; None: with the training images' own.
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None
    origin: str = ""  # where its files were found
    class_names: tuple[str, ...] = ()
    held_out: np.ndarray | None = None  # indices of training samples that no client may hold
    # [S] which client holds each training sample, by number or name; None: that is for a partition to say.
    train_clients: np.ndarray | None = None

    @property
    def names(self) -> list[str]:
        """Names of the classes, or their numbers if they have no names."""
        return list(self.class_names or map(str, range(self.classes)))

    @property
    def test_counts(self) -> np.ndarray:
        """[classes] samples of each class in the test set."""
        return np.bincount(self.test_labels, minlength=self.classes)


def folders(config: Config) -> list[Path]:
    """Folders to search for the files of a named data set."""
    base = Path(config.data_dir or DEFAULT_FOLDER)
    return [base, base / config.dataset]


def refuse_file(config: Config, path: Path) -> Refuse:
    """A function that turns a reason into an error about one file of a data set."""
    return lambda reason: SettingError("dataset", config.dataset, f"{path}: {reason}")


def not_found(config: Config, files: str, *, source: str, also: str = "") -> SettingError:
    """The error that says which files to put where, and where to get them."""
    places = " or ".join(map(str, folders(config)))
    reason = f"not found in {places} (--data-dir); put {files} there, from {source}{also}"
    return SettingError("dataset", config.dataset, reason)


def hold_out(count: int, seed: int, *, clients: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Seeded indices of training and test samples; with [S] ids of clients, a part of each client's."""
    order = np.random.default_rng([seed, 8]).permutation(count)
    if clients is not None:
        held_out = part_of_each(clients, HELD_OUT, order)
        return np.setdiff1d(order, held_out), held_out
    held_out, kept = np.split(order, [round(count * HELD_OUT)])
    return kept, held_out


def part_of_each(clients: np.ndarray, fraction: float, order: np.ndarray) -> np.ndarray:
    """The first samples of each client in `order` [S]: this fraction, but never all. `clients` [S] are ids."""
    _, numbers, sizes = np.unique(clients, return_inverse=True, return_counts=True)
    by_client = order[np.argsort(numbers[order], kind="stable")]
    place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # among the samples of its client
    taken = np.minimum(np.rint(sizes * fraction), sizes - 1)
    return by_client[place < np.repeat(taken, sizes)]


def with_validation(dataset: Dataset, fraction: float) -> Dataset:
    """The data set with a part of its training samples as test set; all seeds hold out the same ones."""
    count = len(dataset.train_labels)
    order = np.random.default_rng(9).permutation(count)
    if dataset.train_clients is not None:
        held_out = part_of_each(dataset.train_clients, fraction, order)
    else:
        held_out = order[: max(1, round(count * fraction))]
    return dataset._replace(
        test_images=dataset.train_images[held_out], test_labels=dataset.train_labels[held_out], held_out=held_out
    )


def check_images(images: Images, labels: np.ndarray, split: str, refuse: Refuse) -> int:
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


def check_clients(clients: np.ndarray, count: int, refuse: Refuse) -> np.ndarray:
    """[S] ids of clients, one for each of `count` images: whole numbers from 0 on, or texts."""
    if clients.shape != (count,):
        raise refuse(f"train_clients must be one client per image ({count}), not of shape {clients.shape}")
    if clients.dtype.kind not in "iuUS":
        raise refuse(f"train_clients must be whole numbers or strings, not {clients.dtype}")
    if clients.dtype.kind == "i" and clients.min() < 0:
        raise refuse(f"train_clients must be non-negative whole numbers, but holds {clients.min()}")
    return clients


def checked(dataset: Dataset, refuse: Refuse) -> Dataset:
    """Checks a data set that a caller made, and returns it with int32 labels."""
    for split in ("train", "test"):
        images, labels = getattr(dataset, f"{split}_images"), getattr(dataset, f"{split}_labels")
        if (found := check_images(images, labels, split, refuse)) > dataset.classes:
            raise refuse(f"{split}_labels hold {found - 1}, but classes is {dataset.classes}")
    if dataset.class_names and len(dataset.class_names) != dataset.classes:
        raise refuse(f"class_names holds {len(dataset.class_names)} names, but classes is {dataset.classes}")
    if dataset.train_clients is not None:
        check_clients(dataset.train_clients, len(dataset.train_labels), refuse)
    if dataset.train_labels.dtype == dataset.test_labels.dtype == np.int32:
        return dataset  # unchanged: federations of one data set share its arrays
    return dataset._replace(
        train_labels=dataset.train_labels.astype(np.int32), test_labels=dataset.test_labels.astype(np.int32)
    )


def normalisation(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """[3] mean and standard deviation to normalise pixel values with: the data set's constants, or measured ones."""
    if dataset.mean is None or dataset.std is None:
        images = dataset.train_images
        if isinstance(images, ImageSource) and not images.stored:
            images = images.sample()
        return pixel_statistics(images)
    return np.asarray(dataset.mean, np.float32) * 255, np.asarray(dataset.std, np.float32) * 255


def pixel_statistics(images: Images) -> tuple[np.ndarray, np.ndarray]:
    """[3] mean and standard deviation of the pixel values, from exact sums."""
    channels = images.shape[3]
    sums = np.zeros((2, channels))
    for start in range(0, len(images), BATCH):
        values = images[start : start + BATCH].astype(np.uint16)
        # Over samples first, whose rows are long: NumPy is slow in sums along an axis that leaves three numbers.
        for place, powers in enumerate((values, values * values)):
            sums[place] += powers.sum(axis=0, dtype=np.uint32).sum(axis=(0, 1), dtype=np.uint64)
    mean, square = sums / (images.size / channels)
    std = np.maximum(np.sqrt(np.maximum(square - mean**2, 0)), 1.0)  # a constant channel keeps its scale
    repeat = 3 // channels
    return np.repeat(mean, repeat).astype(np.float32), np.repeat(std, repeat).astype(np.float32)
