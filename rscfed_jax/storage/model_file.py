"""Model files: named tensors as safetensors or as a PyTorch state dict. JAX is not imported here."""

import io
import os
import pickle
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from rscfed_jax.config import SettingError
from rscfed_jax.config.files import read_bounded, write_whole
from rscfed_jax.config.limits import OverLimitError, check_limit
from rscfed_jax.config.npzfile import check_packed
from rscfed_jax.storage.run_directory import load_config

TORCH_ENDINGS = (".pt", ".pth")
ENDINGS = (".safetensors", *TORCH_ENDINGS)
COUNTER = ".num_batches_tracked"  # of batch-norm in PyTorch; nothing here uses the number


def is_model_file(path: str | Path) -> bool:
    """Whether the name is that of a model file, there or not."""
    return str(path).endswith(ENDINGS) and not os.path.isdir(path)


def check_stored(path: str | Path, *, setting: str) -> None:
    """Refuses a path that holds no run, no checkpoint and no readable model file."""
    if is_model_file(path):
        read_tensors(path, setting=setting)
    else:
        load_config(path, setting=setting, or_else=f", nor a model file ({', '.join(ENDINGS)})")


def read_tensors(path: str | Path, *, setting: str) -> dict[str, np.ndarray]:
    """The float tensors of a model file in float32, without batch counters; anything else is a SettingError.

    The published files hold them under `state_dict`, beside optimiser states. A prefix `module.`, which PyTorch's
    DataParallel leaves, is dropped.
    """
    read = _read_torch if str(path).endswith(TORCH_ENDINGS) else _read_safetensors
    try:
        content = read_bounded(path, "bytes")
    except OverLimitError as error:
        raise SettingError(setting, path, str(error)) from None
    except OSError as error:
        raise SettingError(setting, path, f"cannot be read: {error.strerror}") from None
    try:
        tensors = read(content, setting=setting, path=path)
    except SettingError:
        raise
    except ValueError as error:
        raise SettingError(setting, path, str(error)) from None
    if tensors and all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): array for name, array in tensors.items()}
    return tensors


def write_tensors(path: str | Path, tensors: dict[str, np.ndarray], *, setting: str) -> None:
    """Writes a model file as a whole: a reader sees the old or the new one, never a part."""
    check_target(path, setting=setting, overwrite=True)
    tensors = {name: np.array(array, order="C") for name, array in tensors.items()}
    if str(path).endswith(TORCH_ENDINGS):
        torch = _torch(setting=setting, path=path)
        buffer = io.BytesIO()
        torch.save({name: torch.from_numpy(array) for name, array in tensors.items()}, buffer)
        content = buffer.getvalue()
    else:
        content = safetensors.numpy.save(tensors)
    try:
        write_whole(path, content)
    except OSError as error:
        raise SettingError(setting, path, f"cannot be written: {error.strerror}") from None


def check_target(path: str | Path, *, setting: str, overwrite: bool) -> None:
    """Refuses a file that cannot be written: by its ending, its folder, or because it is there already."""
    if not str(path).endswith(ENDINGS):
        raise SettingError(setting, path, f"must end in {', '.join(ENDINGS)}")
    if os.path.isdir(path) or not os.path.isdir(Path(path).parent):
        raise SettingError(setting, path, "must be in an existing folder")
    if os.path.exists(path) and not overwrite:
        raise SettingError(setting, path, "already exists; add --force to overwrite it")
    if str(path).endswith(TORCH_ENDINGS):
        _torch(setting=setting, path=path)


def _read_safetensors(content: bytes, *, setting: str, path: str | Path) -> dict[str, np.ndarray]:
    try:
        arrays = safetensors.numpy.load(content)
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError, AttributeError):
        raise ValueError("is not a readable safetensors file") from None
    arrays = {name: array for name, array in arrays.items() if not name.endswith(COUNTER)}
    for name, array in arrays.items():
        # NumPy has no bfloat16 of its own: the type comes from ml_dtypes, under its name.
        if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
            raise ValueError(f"tensor {name} holds {array.dtype} values, not floats")
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def _read_torch(content: bytes, *, setting: str, path: str | Path) -> dict[str, np.ndarray]:
    torch = _torch(setting=setting, path=path)
    try:
        check_packed(content)
        with warnings.catch_warnings(action="ignore"):  # the refusal is one line
            loaded = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except OverLimitError:
        raise
    except pickle.UnpicklingError as error:
        if "GLOBAL" in str(error):
            raise ValueError("holds Python objects besides tensors, which are never loaded") from None
        raise ValueError("is not a readable PyTorch file") from None
    except Exception:  # a broken file raises errors of many types
        raise ValueError("is not a readable PyTorch file") from None
    if isinstance(loaded, dict) and isinstance(loaded.get("state_dict"), dict):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, dict):
        raise ValueError("holds no state dict")
    tensors = {str(name): value for name, value in loaded.items() if not str(name).endswith(COUNTER)}
    # A tensor may repeat a few numbers any number of times.
    check_limit("bytes", sum(4 * value.numel() for value in tensors.values() if isinstance(value, torch.Tensor)))
    return {name: _to_numpy(torch, name, value) for name, value in tensors.items()}


def _to_numpy(torch: ModuleType, name: object, value: Any) -> np.ndarray:
    if not isinstance(value, torch.Tensor):
        raise ValueError(f"{name} is not a tensor")
    if value.layout is not torch.strided:
        raise ValueError(f"tensor {name} is sparse")
    if not value.is_floating_point():
        raise ValueError(f"tensor {name} holds {value.dtype} values, not floats")
    return value.detach().to(torch.float32).numpy()


def _torch(*, setting: str, path: str | Path) -> ModuleType:
    try:
        import torch
    except ImportError:
        reason = "needs PyTorch: pip install 'rscfed-jax[torch]', or use .safetensors"
        raise SettingError(setting, path, reason) from None
    return torch
