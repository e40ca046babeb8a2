"""What clients of a large population keep between rounds: a record of bytes for each that was ever selected."""

from collections.abc import Collection
from typing import Protocol

import numpy as np

from rscfed_jax.storage.checkpoint import Arrays


class Records(Protocol):
    """Records by client. A client that was never written has a record of zeros."""

    def read(self, clients: np.ndarray) -> np.ndarray:
        """[n, size] uint8 records of the clients [n]."""

    def write(self, clients: np.ndarray, records: np.ndarray) -> None:
        """Keeps the records [n, size] of the clients [n], each named once."""

    def has(self, clients: np.ndarray) -> np.ndarray:
        """[n] which of the clients [n] were ever written. Others may be written by a thread at the same time."""

    def clients(self) -> np.ndarray:
        """The clients that were ever written, in rising order."""

    def freeze(self, round_: int, rounds: Collection[int]) -> Arrays | None:
        """What the checkpoint of a round must hold to find the records again; None: the records themselves."""

    def close(self) -> None:
        """Lets the records go."""

    def sync(self) -> None:
        """Returns when a checkpoint that finds the records may get its name."""

    def load(self, index: Arrays, others: dict[int, Arrays]) -> None:
        """Goes back to what `freeze` told the checkpoint; `others` are what all checkpoints were told, by round."""


class MemoryRecords:
    """Records in the host's memory."""

    def __init__(self, size: int):
        self.size = size
        self._records: dict[int, np.ndarray] = {}

    def read(self, clients: np.ndarray) -> np.ndarray:
        """As `Records` says."""
        out = np.zeros((len(clients), self.size), np.uint8)
        for place, client in enumerate(clients.tolist()):
            if (record := self._records.get(client)) is not None:
                out[place] = record
        return out

    def write(self, clients: np.ndarray, records: np.ndarray) -> None:
        """As `Records` says."""
        for client, record in zip(clients.tolist(), records, strict=True):
            self._records[client] = record.copy()

    def has(self, clients: np.ndarray) -> np.ndarray:
        """As `Records` says."""
        return np.array([client in self._records for client in clients.tolist()], bool)

    def clients(self) -> np.ndarray:
        """As `Records` says."""
        return np.array(sorted(self._records), np.int32)

    def freeze(self, round_: int, rounds: Collection[int]) -> None:
        """As `Records` says."""

    def close(self) -> None:
        """As `Records` says."""

    def sync(self) -> None:
        """As `Records` says."""

    def load(self, index: Arrays, others: dict[int, Arrays]) -> None:
        """As `Records` says."""
        raise NotImplementedError
