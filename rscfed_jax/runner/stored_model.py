"""Reads a trained global model from a run directory, one of its checkpoints, or a model file."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp

from rscfed_jax.config import SettingError
from rscfed_jax.core.types import Model
from rscfed_jax.models.torch_names import from_torch_names, to_torch_names
from rscfed_jax.storage.checkpoint import Checkpoints
from rscfed_jax.storage.model_file import check_stored, is_model_file, read_tensors, write_tensors
from rscfed_jax.storage.run_directory import RunDirectory, split_checkpoint


def load_model(path: str | Path, like: Model, *, setting: str) -> tuple[Model, int | None]:
    """The global model under a path, with the parameters of `like`, and its round; a file does not know its round."""
    if is_model_file(path):
        tensors = read_tensors(path, setting=setting)
        try:
            return jax.tree.map(jnp.array, from_torch_names(tensors, like)), None
        except ValueError as error:
            raise SettingError(setting, path, str(error)) from None
    check_stored(path, setting=setting)
    model, round_ = _restore(path, setting=setting)
    if jax.tree.map(jnp.shape, model) != jax.tree.map(jnp.shape, like):
        raise SettingError(setting, path, "its model has different parameters than these settings require")
    return jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), model, like), round_


def export_model(run: str | Path, file: str | Path) -> int:
    """Writes the newest global model of a run, or of the checkpoint named, as a model file; returns its round."""
    model, round_ = _restore(run, setting="RUN_DIR")
    save_model(file, model)
    return round_


def save_model(file: str | Path, model: Model, *, setting: str = "FILE") -> None:
    """Writes a model as safetensors, or as a PyTorch state dict where the file ends in .pt or .pth."""
    write_tensors(file, to_torch_names(model), setting=setting)


def _restore(path: str | Path, *, setting: str) -> tuple[Model, int]:
    run, round_ = split_checkpoint(path)
    say = lambda text: print(text, file=sys.stderr)  # noqa: E731
    with Checkpoints(RunDirectory(run).checkpoints, read_only=True) as checkpoints:
        if round_ is None:
            found = checkpoints.newest(("model",), say)
        else:
            items = checkpoints.read(round_, ("model",), say, put_aside=False)
            found = None if items is None else (round_, items)
    if found is None:
        raise SettingError(setting, path, "holds no valid checkpoint")
    newest, items = found
    return _nested(items["model"]), newest


def _nested(arrays: dict) -> Model:
    """Nested dictionaries of arrays that are named after their place, as in `params.l3.bias`."""
    tree: Model = {}
    for name, leaf in arrays.items():
        *path, last = name.split(".")
        branch = tree
        for part in path:
            branch = branch.setdefault(part, {})
        branch[last] = leaf
    return tree
