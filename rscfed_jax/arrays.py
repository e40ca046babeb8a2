"""How Orbax stores the arrays of a checkpoint here: one npz file, in which every array has a checksum.

Orbax's own array format notices a lost file but not a changed byte, and meets a full disk with a traceback in each of
its threads.
"""

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp

FILE = "arrays.npz"

Arrays = dict[str, np.ndarray]


class ArraysHandler(ocp.AsyncCheckpointHandler):
    """Writes named host arrays beside the rounds; they must not change until they are written."""

    async def async_save(self, directory: Path, args: "SaveArrays") -> list[ocp.future.Future]:
        """Starts to write."""
        return [ocp.future.CommitFutureAwaitingContractedSignals(_write(Path(directory) / FILE, args.arrays))]

    def save(self, directory: Path, args: "SaveArrays") -> None:
        """Orbax calls `async_save` alone."""
        raise NotImplementedError

    def restore(self, directory: Path, args: "RestoreArrays") -> Arrays:
        """The arrays; an error if one of them is not what was written."""
        del args
        return read_arrays(Path(directory) / FILE)


async def _write(path: Path, arrays: Arrays) -> None:
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # NumPy's stubs see allow_pickle in it
        file.flush()
        os.fsync(file.fileno())


def read_arrays(path: Path) -> Arrays:
    """Reads all arrays of an npz file, checksums compared, nothing unpickled."""
    with zipfile.ZipFile(path) as archive:
        wrong = archive.testzip()
    if wrong is not None:
        raise ValueError(f"wrong checksum of {wrong}")
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


@ocp.args.register_with_handler(ArraysHandler, for_save=True)
@dataclass
class SaveArrays(ocp.args.CheckpointArgs):
    """What to write."""

    arrays: Arrays


@ocp.args.register_with_handler(ArraysHandler, for_restore=True)
@dataclass
class RestoreArrays(ocp.args.CheckpointArgs):
    """Asks for all arrays."""
