"""Arrays of different lengths, one for each of many clients, held as a single array."""

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np

BLOCK = 2**23  # numbers that are counted at once


class Ragged(Sequence[np.ndarray]):
    """N arrays as one: part i is values[starts[i] : starts[i + 1]]. A million small parts take no objects."""

    def __init__(self, values: np.ndarray, sizes: np.ndarray):
        self.values = values  # [S]
        self.starts = np.zeros(len(sizes) + 1, np.int64)  # [N + 1]
        np.cumsum(sizes, out=self.starts[1:])

    @classmethod
    def of(cls, parts: Sequence[np.ndarray]) -> "Ragged":
        """The same arrays in this form."""
        if isinstance(parts, Ragged):
            return parts
        return cls(np.concatenate(parts), np.array([len(part) for part in parts]))

    @property
    def sizes(self) -> np.ndarray:
        """[N] lengths."""
        return np.diff(self.starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, index: int) -> np.ndarray: ...

    @overload
    def __getitem__(self, index: slice) -> "Ragged": ...

    def __getitem__(self, index: int | slice) -> "np.ndarray | Ragged":
        if isinstance(index, slice):
            first, last, _ = index.indices(len(self))
            return Ragged(self.values[self.starts[first] : self.starts[last]], self.sizes[first:last])
        number = range(len(self))[index]
        return self.values[self.starts[number] : self.starts[number + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self.values[first:last] for first, last in zip(self.starts[:-1], self.starts[1:], strict=True))

    def like(self, values: np.ndarray) -> "Ragged":
        """Other values [S] in parts of the same lengths."""
        return Ragged(values, self.sizes)

    def how_many(self, mask: np.ndarray) -> np.ndarray:
        """[N] how many places of each part `mask` [S] names."""
        before = np.zeros(len(mask) + 1, np.int32)
        np.cumsum(mask, out=before[1:])
        return np.diff(before[self.starts])

    def where(self, mask: np.ndarray) -> "Ragged":
        """The values that `mask` [S] names."""
        return Ragged(self.values[mask], self.how_many(mask))

    def take(self, numbers: np.ndarray) -> "Ragged":
        """Some of the parts, copied."""
        sizes = self.sizes[numbers]
        places = np.arange(sizes.sum()) + np.repeat(self.starts[numbers] - (np.cumsum(sizes) - sizes), sizes)
        return Ragged(self.values[places], sizes)

    def blocks(self, width: int) -> Iterator[slice]:
        """Slices of the parts, so few in each that a table of them with rows of `width` numbers stays small."""
        step = max(1, BLOCK // width)
        return (slice(first, min(first + step, len(self))) for first in range(0, len(self), step))

    def histogram(self, classes: int) -> np.ndarray:
        """[N, classes] how often each part holds each of the numbers from 0 to classes - 1."""
        counts = np.zeros((len(self), classes), np.int32)
        for block in self.blocks(classes):
            part = self[block]
            owners = np.repeat(np.arange(len(part)), part.sizes)
            found = np.bincount(owners * classes + part.values, minlength=len(part) * classes)
            counts[block] = found.reshape(-1, classes)
        return counts

    def ranks(self, rng: np.random.Generator) -> np.ndarray:
        """[S] a random order of the places of each part, counted from 0."""
        owners = np.repeat(np.arange(len(self), dtype=np.int32), self.sizes)
        order = np.lexsort((rng.random(len(owners), dtype=np.float32), owners))
        ranks = np.empty(len(owners), np.int32)
        ranks[order] = np.arange(len(owners)) - self.starts[owners]
        return ranks
