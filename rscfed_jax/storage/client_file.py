"""Records of clients in a file that grows with the clients that were ever selected, and survives a kill.

The file has slots of equal size. A checkpoint holds the index: which client's record is in which slot, with a checksum.
A slot that a checkpoint refers to is not written again as long as that checkpoint exists, so that it finds the records
of its own round, whenever the process was killed. Slots that no checkpoint refers to are used again.
"""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from rscfed_jax.config import SettingError
from rscfed_jax.storage.checkpoint import Arrays, sync_directory

# The index of a checkpoint that refers to no record.
NO_CLIENTS: Arrays = {"clients": np.zeros(0, np.int32), "slots": np.zeros(0, np.int64), "sums": np.zeros(0, np.uint64)}


def checksum(content: bytes | np.ndarray) -> int:
    """The sum of 64-bit words: a checksum that takes a tenth of the time of CRC-32."""
    values = np.frombuffer(content, np.uint8)
    whole = len(values) // 8 * 8
    return (int(values[:whole].view(np.uint64).sum()) + int(values[whole:].sum())) % 2**64


class FileRecords:
    """Records in the file at `path`, each of `size` bytes; see `rscfed_jax.storage.client_records.Records`."""

    def __init__(self, path: Path, size: int):
        self.path, self.size = path, size
        self._slots: dict[int, int] = {}  # by client
        self._sums: dict[int, int] = {}  # by client
        self._held: dict[int, np.ndarray] = {}  # the slots that the checkpoint of a round refers to
        self._frozen: set[int] = set()  # all of those
        self._free: list[int] = []
        self._end = 0  # the first slot that was never used
        with self._refusing("written"):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            sync_directory(path.parent)

    def close(self) -> None:
        """As `Records` says."""
        os.close(self._file)

    @contextmanager
    def _refusing(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SettingError("out", self.path, f"cannot be {what}: {error.strerror}") from None

    def read(self, clients: np.ndarray) -> np.ndarray:
        """As `Records` says; refuses a record that is damaged."""
        out = np.zeros((len(clients), self.size), np.uint8)
        for place, client in enumerate(clients.tolist()):
            if (slot := self._slots.get(client)) is None:
                continue
            with self._refusing("read"):
                content = os.pread(self._file, self.size, slot * self.size)
            if len(content) != self.size or checksum(content) != self._sums[client]:
                reason = f"the state of client {client} is damaged; remove the newest checkpoint to resume before it"
                raise SettingError("out", self.path, reason)
            out[place] = np.frombuffer(content, np.uint8)
        return out

    def write(self, clients: np.ndarray, records: np.ndarray) -> None:
        """As `Records` says; the records are on disk after `sync`."""
        for client, record in zip(clients.tolist(), np.ascontiguousarray(records), strict=True):
            slot = self._slots.get(client)
            if slot is None or slot in self._frozen:
                slot = self._slots[client] = self._new_slot()
            with self._refusing("written"):
                if os.pwrite(self._file, record.data, slot * self.size) < self.size:
                    raise OSError(0, "the disk is full")
            self._sums[client] = checksum(record)

    def _new_slot(self) -> int:
        if self._free:
            return self._free.pop()
        self._end += 1
        return self._end - 1

    def has(self, clients: np.ndarray) -> np.ndarray:
        """As `Records` says."""
        return np.array([client in self._slots for client in clients.tolist()], bool)

    def clients(self) -> np.ndarray:
        """As `Records` says."""
        return np.array(sorted(self._slots), np.int32)

    def freeze(self, round_: int, rounds: Collection[int]) -> Arrays:
        """The index for the checkpoint of a round; `rounds` are those that have a checkpoint now."""
        self._held = {kept: slots for kept, slots in self._held.items() if kept in rounds}
        clients = self.clients()
        slots = np.array([self._slots[client] for client in clients.tolist()], np.int64)
        # An earlier checkpoint of this round is there until the new one has its name.
        self._hold(round_, np.union1d(slots, self._held.get(round_, slots)))
        sums = np.array([self._sums[client] for client in clients.tolist()], np.uint64)
        return {"clients": clients, "slots": slots, "sums": sums}

    def _hold(self, round_: int, slots: np.ndarray) -> None:
        self._held[round_] = slots
        self._frozen = set(np.concatenate(list(self._held.values())).tolist())
        used = self._frozen.union(self._slots.values())
        self._free = [slot for slot in range(self._end) if slot not in used]

    def sync(self) -> None:
        """Returns when all that was written is on disk."""
        os.fsync(self._file)

    def load(self, index: Arrays, others: dict[int, Arrays]) -> None:
        """Goes back to the index of a checkpoint; `others` are those of all checkpoints that exist, by round."""
        clients = index["clients"].tolist()
        self._slots = dict(zip(clients, index["slots"].tolist(), strict=True))
        self._sums = dict(zip(clients, index["sums"].tolist(), strict=True))
        self._end = 1 + max((int(one["slots"].max(initial=-1)) for one in (index, *others.values())), default=-1)
        for round_, one in others.items():
            self._hold(round_, one["slots"])
