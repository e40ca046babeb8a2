"""The table of samples that training reads: resized and packed images, sorted by client, with hidden labels removed.

NumPy arrays by name, for several federations of one data set at once; all but the names in `SHARED` have a leading
axis of G federations.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from rscfed_jax.data.dataset import Dataset, normalisation
from rscfed_jax.data.federation import Federation
from rscfed_jax.data.ragged import Ragged
from rscfed_jax.data.resize import resize

ALIGNMENT = 64  # bytes
HIDDEN = -1  # the label that training sees in place of a hidden one
SHARED = ("images", "positions", "mean", "std")


def train_table(federations: Sequence[Federation], *, image_size: int, resize_to: int | None = None) -> dict[str, Any]:
    """The training samples of G federations of N clients, all of one data set.

    Client i holds the samples starts[i] to starts[i] + sizes[i]; S is the number of samples of the largest federation.
    Images have the side R = `resize_to` (default 5/4 of `image_size`), of which random crops are taken.

    - images [I, R, R] uint32: packed pixels of the I images that any client holds
    - image_ids [G, S] int32: the image of each sample
    - labels [G, S] int32: HIDDEN where training may not see the label
    - starts, sizes [G, N] int32
    - labeled, unlabeled [G, N] bool: the client holds a label, or a sample without one
    - labeled_ids [G, L] int32: the clients that hold a label
    - unlabeled_ids [G, U] int32: the clients that hold a sample without one
    - class_counts [G, N, classes] int32: visible labels of each class
    - positions [P] int32: 0, 1, 2, ...; P, a power of two, is at least the largest client's size
    - mean, std [3] float32: of the pixel values 0 to 255
    - truth [G, S] int32: all labels, to judge pseudo-labels by
    """
    dataset = federations[0].dataset
    samples = [Ragged.of(federation.samples).values for federation in federations]
    used = np.unique(np.concatenate(samples))
    longest = max(map(len, samples))
    largest = max(int(federation.sizes.max()) for federation in federations)
    mean, std = normalisation(dataset)

    def stack(values: Callable[[Federation], np.ndarray], dtype: DTypeLike = np.int32) -> np.ndarray:
        return np.stack([values(federation) for federation in federations]).astype(dtype)

    def padded(values: np.ndarray) -> np.ndarray:
        return np.pad(values, (0, longest - len(values)))

    def truth(federation: Federation) -> np.ndarray:
        return dataset.train_labels[Ragged.of(federation.samples).values].astype(np.int32)

    def labels(federation: Federation) -> np.ndarray:
        return padded(np.where(Ragged.of(federation.label_visible).values, truth(federation), HIDDEN))

    return {
        "images": pack_pixels(resize(dataset.train_images[used], resize_to or image_size * 5 // 4)),
        "image_ids": stack(lambda federation: padded(np.searchsorted(used, Ragged.of(federation.samples).values))),
        "labels": stack(labels),
        "starts": stack(lambda federation: np.cumsum(federation.sizes) - federation.sizes),
        "sizes": stack(lambda federation: federation.sizes),
        "labeled": stack(lambda federation: federation.labeled, bool),
        "unlabeled": stack(lambda federation: federation.unlabeled, bool),
        "labeled_ids": stack(lambda federation: np.flatnonzero(federation.labeled)),
        "unlabeled_ids": stack(lambda federation: np.flatnonzero(federation.unlabeled)),
        "class_counts": stack(lambda federation: federation.label_counts),
        "positions": positions_of(largest),
        "mean": mean,
        "std": std,
        "truth": stack(lambda federation: padded(truth(federation))),
    }


def positions_of(largest: int) -> np.ndarray:
    """[P] the places of a client's samples, given the largest client's size."""
    # A power of two, so that federations of similar sizes share one compiled program.
    return np.arange(1 << (largest - 1).bit_length(), dtype=np.int32)


def test_table(dataset: Dataset, *, image_size: int) -> dict[str, Any]:
    """The test set at the model's input size H: images [T, H, H] uint32, labels [T] int32, mean and std [3]."""
    mean, std = normalisation(dataset)
    images = pack_pixels(resize(dataset.test_images, image_size))
    return {"images": images, "labels": dataset.test_labels, "mean": mean, "std": std}


test_table.__test__ = False  # type: ignore[attr-defined]  # not a test case for pytest


def pack_pixels(images: np.ndarray, *, room_for: int = 0) -> np.ndarray:
    """[S, H, W, 1 or 3] uint8 as [S, H, W] uint32: red, green, blue from the lowest byte on, a grey value in all three.

    A gather then fetches a whole pixel as one word. Black images fill the array up to `room_for` of them.
    """
    count = len(images)
    shape = (max(count, room_for), *images.shape[1:3], 4)
    # CPU devices share an array whose address is a multiple of 64, and copy any other once for each of them.
    room = np.zeros(math.prod(shape) + ALIGNMENT - 1, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    words = room[start : start + math.prod(shape)].reshape(shape)
    words[:count, ..., :3] = images
    return words.view("<u4")[..., 0].astype(np.uint32, copy=False)
