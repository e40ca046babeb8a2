"""The states of the clients of a population: packed into records on the host, and brought into the rows of the devices.

They travel a few rows at a time, so that the host never holds those of a whole working set twice.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rscfed_jax.core.client_axis import CLIENTS, GRID, ClientAxis
from rscfed_jax.core.types import ClientState
from rscfed_jax.runner.snapshot import FEWEST_ROWS, put_rows, take_rows
from rscfed_jax.storage.client_file import FileRecords
from rscfed_jax.storage.client_records import MemoryRecords, Records

GLANCE = 4096  # bytes of a record that nearly always show that it is not all zeros


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
    """The states of all clients that were ever selected. A thread writes them while the next rounds run."""

    def __init__(self, packing: Packing, records: Records):
        self.packing, self.records = packing, records
        self._writer = ThreadPoolExecutor(1)
        self._writing: list[tuple[np.ndarray, Future[None]]] = []  # of which clients

    @classmethod
    def of(cls, clients: ClientState | None, file: Path | None) -> "ClientStates":
        """States of the form of `clients` [cells, rows, ...], in the host's memory or in a file."""
        packing = Packing(clients)
        return cls(packing, MemoryRecords(packing.size) if file is None else FileRecords(file, packing.size))

    def bring(self, axis: ClientAxis, clients: ClientState | None, ids: np.ndarray) -> ClientState | None:
        """The rows of the devices with the states of the clients `ids`, row i that of ids[i]."""
        if clients is None:
            return None
        if any(np.isin(ids, others).any() for others, _ in self._writing):
            self.wait()
        clients = _cleared(clients, axis=axis)
        number = jax.tree.leaves(clients)[0].shape[1]
        begun = np.flatnonzero(self.records.has(ids))
        for first in range(0, len(begun), FEWEST_ROWS):
            # A row beyond the last one is written nowhere.
            rows = np.full(FEWEST_ROWS, number, np.int32)
            some = begun[first : first + FEWEST_ROWS]
            rows[: len(some)] = some
            records = np.zeros((FEWEST_ROWS, self.packing.size), np.uint8)
            records[: len(some)] = self.records.read(ids[some])
            clients = put_rows(clients, 0, rows, self.packing.unpack(records), axis=axis)
        return clients

    def keep(self, axis: ClientAxis, clients: ClientState | None, ids: np.ndarray) -> None:
        """Takes the states of the clients `ids` out of the rows of the devices, and begins to write them."""
        if clients is None:
            return
        self.wait()  # for the rounds before: the host holds the states of one working set, not of more and more
        for first in range(0, len(ids), FEWEST_ROWS):
            some = np.arange(first, min(first + FEWEST_ROWS, len(ids)), dtype=np.int32)
            states = axis.to_host(take_rows(clients, 0, np.resize(some, FEWEST_ROWS)))
            self._writing.append((ids[some], self._writer.submit(self._write, ids[some], states)))

    def _write(self, ids: np.ndarray, states: Any) -> None:
        """Keeps the first states for the clients `ids`, but for those that have not begun."""
        records = self.packing.pack(states)[: len(ids)]
        begun = np.array([record[:GLANCE].any() or record.any() for record in records])
        self.records.write(ids[begun], records[begun])

    def wait(self) -> None:
        """Returns when all states are written; an error in that is raised here."""
        writing, self._writing = self._writing, []
        for _, each in writing:
            each.result()

    def close(self) -> None:
        """Ends the thread, after what it is writing, and lets the records go."""
        self._writer.shutdown()
        self.records.close()

    def all(self) -> tuple[np.ndarray, Any]:
        """The clients that were ever selected, and their states."""
        self.wait()
        ids = self.records.clients()
        return ids, self.packing.unpack(self.records.read(ids))

    def nobody(self) -> tuple[np.ndarray, Any]:
        """No clients, and the states of none."""
        return np.zeros(0, np.int32), self.packing.unpack(np.zeros((0, self.packing.size), np.uint8))

    def put(self, ids: np.ndarray, states: Any) -> None:
        """Keeps the states [n, ...] of the clients `ids`."""
        if len(ids) and self.packing.size:
            self.records.write(ids, self.packing.pack(states))


@partial(jax.jit, static_argnames="axis", donate_argnames="clients")
def _cleared(clients: Any, *, axis: ClientAxis) -> Any:
    """Rows of clients that were never selected, in the memory of others."""
    return axis.place(jax.tree.map(jnp.zeros_like, clients), GRID, CLIENTS)
