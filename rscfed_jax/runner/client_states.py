"""The states of the clients of a population: packed into records on the host, and brought into the rows of the devices.

They travel a few rows at a time, so that the host never holds those of a whole working set.
"""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from rscfed_jax.core.client_axis import ClientAxis
from rscfed_jax.core.types import ClientState
from rscfed_jax.runner.snapshot import FEWEST_ROWS, put_rows, take_rows, touched
from rscfed_jax.storage.client_file import FileRecords
from rscfed_jax.storage.client_records import MemoryRecords, Records


class Packing:
    """Between states [n, ...] as pytrees and records [n, size] of bytes."""

    def __init__(self, clients: Any):
        leaves, self.structure = jax.tree.flatten(clients)
        self.shapes = [(leaf.shape[2:], leaf.dtype) for leaf in leaves]  # without cells and rows
        self.sizes = [int(np.prod(shape)) * dtype.itemsize for shape, dtype in self.shapes]
        self.size = sum(self.sizes)

    def pack(self, states: Any) -> np.ndarray:
        """[n, size] records."""
        leaves = [np.ascontiguousarray(leaf) for leaf in jax.tree.leaves(states)]
        return np.concatenate([leaf.reshape(len(leaf), -1).view(np.uint8) for leaf in leaves], axis=1)

    def unpack(self, records: np.ndarray) -> Any:
        """The states of records [n, size]."""
        if not self.sizes:
            return jax.tree.unflatten(self.structure, [])
        cuts = np.cumsum(self.sizes)[:-1]
        parts = zip(np.split(records, cuts, axis=1), self.shapes, strict=True)
        leaves = [np.ascontiguousarray(part).view(dtype).reshape(-1, *shape) for part, (shape, dtype) in parts]
        return jax.tree.unflatten(self.structure, leaves)


class ClientStates:
    """The states of all clients that were ever selected."""

    def __init__(self, packing: Packing, records: Records):
        self.packing, self.records = packing, records

    @classmethod
    def of(cls, clients: ClientState | None, file: Path | None) -> "ClientStates":
        """States of the form of `clients` [cells, rows, ...], in the host's memory or in a file."""
        packing = Packing(clients)
        return cls(packing, MemoryRecords(packing.size) if file is None else FileRecords(file, packing.size))

    def bring(self, axis: ClientAxis, clients: ClientState | None, ids: np.ndarray) -> ClientState | None:
        """The rows of the devices with the states of the clients `ids`; the rows after those are nobody's."""
        if clients is None:
            return None
        rows = jax.tree.leaves(clients)[0].shape[1]
        for first in range(0, len(ids), FEWEST_ROWS):
            some = ids[first : first + FEWEST_ROWS]
            records = np.zeros((FEWEST_ROWS, self.packing.size), np.uint8)
            records[: len(some)] = self.records.read(some)
            # A place beyond the last row is written nowhere.
            places = np.where(np.arange(FEWEST_ROWS) < len(some), first + np.arange(FEWEST_ROWS), rows)
            clients = put_rows(clients, 0, places.astype(np.int32), self.packing.unpack(records), axis=axis)
        return clients

    def keep(self, axis: ClientAxis, clients: ClientState | None, ids: np.ndarray) -> None:
        """Takes the states of the clients `ids` out of the rows of the devices."""
        if clients is None:
            return
        begun = np.flatnonzero(axis.to_host(touched(clients))[0, : len(ids)])
        for first in range(0, len(begun), FEWEST_ROWS):
            some = begun[first : first + FEWEST_ROWS]
            states = axis.to_host(take_rows(clients, 0, np.resize(some, FEWEST_ROWS).astype(np.int32)))
            self.records.write(ids[some], self.packing.pack(states)[: len(some)])

    def all(self) -> tuple[np.ndarray, Any]:
        """The clients that were ever selected, and their states."""
        ids = self.records.clients()
        return ids, self.packing.unpack(self.records.read(ids))

    def nobody(self) -> tuple[np.ndarray, Any]:
        """No clients, and the states of none."""
        return np.zeros(0, np.int32), self.packing.unpack(np.zeros((0, self.packing.size), np.uint8))

    def put(self, ids: np.ndarray, states: Any) -> None:
        """Keeps the states [n, ...] of the clients `ids`."""
        if len(ids) and self.packing.size:
            self.records.write(ids, self.packing.pack(states))
