"""A trained global model, wherever it lies: in a run directory, in one of its checkpoints, or in a model file."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp

from rscfed_jax.checkpoint import Checkpoints
from rscfed_jax.config import SettingError
from rscfed_jax.modelfile import is_model_file
from rscfed_jax.models.convert import load_model_file, save_model
from rscfed_jax.rundir import RunDirectory, split_checkpoint
from rscfed_jax.types import Model


def load_model(path: str | Path, like: Model, *, setting: str) -> tuple[Model, int | None]:
    """The global model under a path, with the parameters of `like`, and its round; a file does not know its round."""
    if is_model_file(path):
        return jax.tree.map(jnp.array, load_model_file(path, like, setting=setting)), None
    model, round_ = _restore(path, setting=setting)
    if jax.tree.map(jnp.shape, model) != jax.tree.map(jnp.shape, like):
        raise SettingError(setting, path, "its model has other parameters than these settings ask for")
    return jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), model, like), round_


def export_model(run: str | Path, file: str | Path) -> int:
    """Writes the newest global model of a run, or of the checkpoint named, as a model file; returns its round."""
    model, round_ = _restore(run, setting="RUN_DIR")
    save_model(file, model)
    return round_


def _restore(path: str | Path, *, setting: str) -> tuple[Model, int]:
    run, round_ = split_checkpoint(path)
    with Checkpoints(RunDirectory(run).checkpoints, read_only=True) as checkpoints:
        found = checkpoints.restore_model(round_, warn=lambda text: print(text, file=sys.stderr))
    if found is None:
        raise SettingError(setting, path, "holds no valid checkpoint")
    return found
