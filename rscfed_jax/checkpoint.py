"""Checkpoints of a run with Orbax: the whole state, and the global model beside it for those who want only that."""

from pathlib import Path
from typing import Self

import jax
import numpy as np
import orbax.checkpoint as ocp

from rscfed_jax.rounds import State
from rscfed_jax.types import Model

KEPT = 3


class Checkpoints:
    """The newest few states of a run, in a directory of their own. Writing goes on beside the next rounds."""

    def __init__(self, directory: str | Path, *, read_only: bool = False):
        options = ocp.CheckpointManagerOptions(
            max_to_keep=None if read_only else KEPT, cleanup_tmp_directories=not read_only, read_only=read_only
        )
        self._manager = ocp.CheckpointManager(Path(directory).absolute(), options=options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._manager.close()

    def latest(self) -> int | None:
        """The round of the newest checkpoint."""
        return self._manager.latest_step()

    def save(self, state: State, *, clients: int) -> None:
        """Writes a state of so many clients under its round; the directory appears only when it is complete."""
        round_ = int(state.round)
        if round_ == self.latest():
            return
        # As host arrays: the next rounds may reuse the state's memory at once.
        plain = jax.device_get(state._replace(key=jax.random.key_data(state.key)))
        # How many rows pad the clients depends on the number of devices; the next run may have another.
        plain = plain._replace(clients=jax.tree.map(lambda leaf: leaf[:clients], plain.clients))
        items = {"state": ocp.args.StandardSave(plain), "model": ocp.args.StandardSave(plain.model)}
        self._manager.save(round_, args=ocp.args.Composite(**items))

    def restore(self, like: State, *, clients: int) -> State:
        """The newest state of so many clients, with the padding and the devices of `like`."""
        plain = like._replace(key=jax.random.key_data(like.key))
        on_host = jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), plain)
        on_host = on_host._replace(clients=jax.tree.map(lambda leaf: leaf[:clients], on_host.clients))
        items = ocp.args.Composite(state=ocp.args.StandardRestore(on_host))
        state = self._manager.restore(self.latest(), args=items)["state"]
        state = state._replace(clients=jax.tree.map(_with_rows_of, state.clients, plain.clients))
        state = jax.tree.map(lambda new, old: jax.device_put(new, old.sharding), state, plain)
        return state._replace(key=jax.random.wrap_key_data(state.key))

    def restore_model(self, round_: int) -> Model:
        """The global model of a round that has a checkpoint."""
        items = ocp.args.Composite(model=ocp.args.StandardRestore())
        return self._manager.restore(round_, args=items)["model"]


def _with_rows_of(leaf: np.ndarray, like: jax.Array) -> np.ndarray:
    return np.pad(leaf, [(0, like.shape[0] - leaf.shape[0])] + [(0, 0)] * (leaf.ndim - 1))
