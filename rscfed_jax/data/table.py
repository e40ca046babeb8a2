"""The device-resident table: what training may see of a federation."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from rscfed_jax.data.dataset import Dataset, normalisation
from rscfed_jax.data.federation import Federation
from rscfed_jax.data.resize import resize

ALIGNMENT = 64  # bytes
HIDDEN = -1  # stands where training may not see a label


class FederatedData(NamedTuple):
    """Training samples of N clients, sorted by client: client i holds samples starts[i] to starts[i] + sizes[i].

    The cells of a grid share the images; who holds which, and sees what label, is each cell's own.
    """

    images: Array  # [I, R, R] uint32 packed pixels, larger than the model's input: a random crop is taken of them
    rows: Array  # [S] int32: the image of each sample
    labels: Array  # [S] int32; HIDDEN where training may not see it
    starts: Array  # [N] int32
    sizes: Array  # [N] int32
    labeled: Array  # [N] bool: the client holds a label
    unlabeled: Array  # [N] bool: the client holds a sample without a label
    labeled_ids: Array  # [L] int32: the clients that do
    positions: Array  # [P] int32: 0, 1, 2, ...; P, a power of two, is not below the largest client's size
    mean: Array  # [3] of the pixel values 0 to 255
    std: Array  # [3]

    @property
    def clients(self) -> int:
        """Number of clients N."""
        return self.sizes.shape[0]


class TestData(NamedTuple):
    """Test samples at the model's input size."""

    images: Array  # [T, H, H] uint32 packed pixels
    labels: Array  # [T] int32
    mean: Array
    std: Array


TestData.__test__ = False  # type: ignore[attr-defined]  # not a test case for pytest

# Which parts have a leading axis of cells in a grid, as `vmap` wants to be told.
_SHARED = ("images", "positions", "mean", "std")
OF_A_CELL: Any = FederatedData(*(None if name in _SHARED else 0 for name in FederatedData._fields))  # type: ignore[arg-type]


def to_device(
    federation: Federation, *, image_size: int, resize_to: int | None = None
) -> tuple[FederatedData, TestData]:
    """Resizes, sorts by client, hides labels, and puts the federation on the device.

    Training images are kept at the side `resize_to` (default 5/4 of `image_size`), of which crops are taken.
    """
    cells, test = cells_to_host([federation], image_size=image_size, resize_to=resize_to or image_size * 5 // 4)
    data = FederatedData(*(leaf if axis is None else leaf[0] for leaf, axis in zip(cells, OF_A_CELL, strict=True)))
    return jax.tree.map(jnp.asarray, (data, test))


def cells_to_host(
    federations: Sequence[Federation], *, image_size: int, resize_to: int
) -> tuple[FederatedData, TestData]:
    """The same for federations of one data set and as many clients: NumPy arrays, with a leading axis of cells."""
    table: Any = FederatedData  # whose fields are arrays of the device elsewhere
    dataset = federations[0].dataset
    samples = [np.concatenate(federation.members) for federation in federations]
    used = np.unique(np.concatenate(samples))
    most = max(map(len, samples))
    largest = max(int(federation.sizes.max()) for federation in federations)

    def stack(values: Callable[[Federation], np.ndarray], dtype: DTypeLike = np.int32) -> np.ndarray:
        return np.stack([values(federation) for federation in federations]).astype(dtype)

    def padded(values: np.ndarray) -> np.ndarray:
        return np.pad(values, (0, most - len(values)))

    def labels(federation: Federation) -> np.ndarray:
        visible = np.concatenate(federation.label_visible)
        known = dataset.train_labels[np.concatenate(federation.members)].astype(np.int32)
        return padded(np.where(visible, known, HIDDEN))

    test = test_to_host(dataset, image_size=image_size)
    train = table(
        images=pack_pixels(resize(dataset.train_images[used], resize_to)),
        rows=stack(lambda federation: padded(np.searchsorted(used, np.concatenate(federation.members)))),
        labels=stack(labels),
        starts=stack(lambda federation: np.cumsum(federation.sizes) - federation.sizes),
        sizes=stack(lambda federation: federation.sizes),
        labeled=stack(lambda federation: federation.labeled, bool),
        unlabeled=stack(lambda federation: ~np.array([seen.all() for seen in federation.label_visible]), bool),
        labeled_ids=stack(lambda federation: np.flatnonzero(federation.labeled)),
        # A power of two, so that federations of alike sizes share one compiled program.
        positions=np.arange(1 << (largest - 1).bit_length(), dtype=np.int32),
        mean=test.mean,
        std=test.std,
    )
    return train, test


def test_to_host(dataset: Dataset, *, image_size: int) -> TestData:
    """The test set, resized, as NumPy arrays."""
    table: Any = TestData
    return table(pack_pixels(resize(dataset.test_images, image_size)), dataset.test_labels, *normalisation(dataset))


def pack_pixels(images: np.ndarray) -> np.ndarray:
    """[S, H, W, 1 or 3] uint8 as [S, H, W] uint32: red, green, blue from the lowest byte on, a grey value in all three.

    One gathered word then brings a whole pixel.
    """
    shape = (*images.shape[:3], 4)
    # CPU devices share an array that begins at a multiple of 64, and copy any other once for each of them.
    room = np.zeros(math.prod(shape) + ALIGNMENT - 1, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    words = room[start : start + math.prod(shape)].reshape(shape)
    words[..., :3] = images
    return words.view("<u4")[..., 0].astype(np.uint32, copy=False)
