"""The device-resident table: what training may see of a federation."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from rscfed_jax.data.dataset import Dataset, normalisation
from rscfed_jax.data.federation import Federation
from rscfed_jax.data.resize import resize

HIDDEN = -1  # stands where training may not see a label


class FederatedData(NamedTuple):
    """Training samples of N clients, sorted by client: client i holds rows starts[i] to starts[i] + sizes[i]."""

    images: Array  # [S, R, R] uint32 packed pixels, larger than the model's input: a random crop is taken of them
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

    __test__ = False  # not a test case for pytest

    images: Array  # [T, H, H] uint32 packed pixels
    labels: Array  # [T] int32
    mean: Array
    std: Array


def to_device(
    federation: Federation, *, image_size: int, resize_to: int | None = None
) -> tuple[FederatedData, TestData]:
    """Resizes, sorts by client, hides labels, and puts the federation on the device.

    Training images are kept at the side `resize_to` (default 5/4 of `image_size`), of which crops are taken.
    """
    resize_to = resize_to or image_size * 5 // 4
    dataset = federation.dataset
    rows = np.concatenate(federation.members)
    visible = np.concatenate(federation.label_visible)
    sizes = federation.sizes
    test = test_to_device(dataset, image_size=image_size)
    train = FederatedData(
        images=jnp.asarray(pack_pixels(resize(dataset.train_images[rows], resize_to))),
        labels=jnp.asarray(np.where(visible, dataset.train_labels[rows], HIDDEN).astype(np.int32)),
        starts=jnp.asarray((np.cumsum(sizes) - sizes).astype(np.int32)),
        sizes=jnp.asarray(sizes.astype(np.int32)),
        labeled=jnp.asarray(federation.labeled),
        unlabeled=jnp.asarray(np.array([not visible.all() for visible in federation.label_visible])),
        labeled_ids=jnp.asarray(np.flatnonzero(federation.labeled).astype(np.int32)),
        # A power of two, so that federations of alike sizes share one compiled program.
        positions=jnp.arange(1 << int(sizes.max() - 1).bit_length(), dtype=jnp.int32),
        mean=test.mean,
        std=test.std,
    )
    return train, test


def test_to_device(dataset: Dataset, *, image_size: int) -> TestData:
    """Resizes the test set and puts it on the device."""
    mean, std = normalisation(dataset)
    return TestData(
        images=jnp.asarray(pack_pixels(resize(dataset.test_images, image_size))),
        labels=jnp.asarray(dataset.test_labels),
        mean=jnp.asarray(mean),
        std=jnp.asarray(std),
    )


def pack_pixels(images: np.ndarray) -> np.ndarray:
    """[S, H, W, 1 or 3] uint8 as [S, H, W] uint32: red, green, blue from the lowest byte on, a grey value in all three.

    One gathered word then brings a whole pixel.
    """
    words = np.zeros((*images.shape[:3], 4), np.uint8)
    words[..., :3] = images
    return words.view("<u4")[..., 0].astype(np.uint32, copy=False)
