"""Checkpoints of a run with Orbax: the whole state, and the global model beside it for those who want only that."""

from pathlib import Path
from typing import Self

import jax
import jax.numpy as jnp
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

    def save(self, state: State) -> None:
        """Writes a state under its round; the directory appears only when it is complete."""
        round_ = int(state.round)
        if round_ == self.latest():
            return
        # As host arrays: the next rounds may reuse the state's memory at once.
        plain = jax.device_get(state._replace(key=jax.random.key_data(state.key)))
        items = {"state": ocp.args.StandardSave(plain), "model": ocp.args.StandardSave(plain.model)}
        self._manager.save(round_, args=ocp.args.Composite(**items))

    def restore(self, like: State) -> State:
        """The newest state, with the shapes and devices of `like`."""
        plain = like._replace(key=jax.random.key_data(like.key))
        abstract = jax.tree.map(ocp.tree.to_shape_dtype_struct, plain)
        items = ocp.args.Composite(state=ocp.args.StandardRestore(abstract))
        state = self._manager.restore(self.latest(), args=items)["state"]
        return state._replace(key=jax.random.wrap_key_data(state.key))

    def restore_model(self, like: Model) -> Model:
        """The newest global model; a ValueError if its parameters are not those of `like`."""
        items = ocp.args.Composite(model=ocp.args.StandardRestore())
        model = self._manager.restore(self.latest(), args=items)["model"]
        if jax.tree.map(jnp.shape, model) != jax.tree.map(jnp.shape, like):
            raise ValueError("the model has other parameters")
        return jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), model, like)
