"""Images that are not held in memory: read or made when a client's samples are asked for.

A data set may have such a source in the place of an array of training images. It has the array's shape and type, and
gives images by their indices.
"""

import math
from collections.abc import Callable

import numpy as np

BATCH = 100  # images that are read at once
MAPPED_BYTES = 2**30  # an array of images in a file is mapped, not read, if it is larger
MEASURED = 2_000  # images that the statistics of a source are taken of, if it makes them


class ImageSource:
    """[S, H, W, C] uint8 images that `read` gives for indices [n]."""

    dtype = np.dtype(np.uint8)
    ndim = 4

    def __init__(self, shape: tuple[int, ...], read: Callable[[np.ndarray], np.ndarray], *, stored: bool):
        self.shape, self._read = shape, read
        self.stored = stored  # in a file: all can be read once, in a time that is short beside a run

    @property
    def size(self) -> int:
        """Numbers of all images."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: np.ndarray | slice) -> np.ndarray:
        """The images at an array of indices, or in a slice."""
        if isinstance(index, slice):
            index = np.arange(*index.indices(len(self)))
        return self._read(np.asarray(index))

    def sample(self) -> np.ndarray:
        """Images at equal distances, few enough to hold."""
        places = np.linspace(0, len(self) - 1, min(len(self), MEASURED)).astype(np.int64)
        return np.concatenate([self[some] for some in np.array_split(places, -(-len(places) // BATCH))])


Images = np.ndarray | ImageSource


def picked(images: np.ndarray, indices: np.ndarray) -> Images:
    """The images at `indices` [S]: of a large mapped array a source, else an array."""
    if not (isinstance(images, np.memmap) and images.nbytes > MAPPED_BYTES):
        return images[indices]
    return ImageSource((len(indices), *images.shape[1:]), lambda index: np.asarray(images[indices[index]]), stored=True)
