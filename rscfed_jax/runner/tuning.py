"""XLA's tuning results for a GPU, kept with the run.

XLA times kernels when it compiles for a GPU, and may choose others the next time, which add in another order. A resumed
run is identical only with the same choice. JAX keeps the choices beside its compiled programs; a copy of them goes
with the run, for the case that the cache is emptied meanwhile.
"""

import contextlib
import shutil
from pathlib import Path

import jax

from rscfed_jax.storage.run_directory import RunDirectory

PART = "xla_gpu_per_fusion_autotune_cache_dir"  # where JAX tells XLA to keep it, below its own cache


def bring_tuning(directory: RunDirectory | None, device: jax.Device) -> None:
    """Puts the choices of the run's earlier part where XLA looks for them."""
    cache = _cache()
    if directory is not None and device.platform == "gpu" and cache is not None:
        _copy_missing(directory.tuning, cache)


def keep_tuning(directory: RunDirectory | None, device: jax.Device) -> None:
    """Keeps the choices with the run."""
    cache = _cache()
    if directory is not None and device.platform == "gpu" and cache is not None:
        _copy_missing(cache, directory.tuning)


def _cache() -> Path | None:
    folder = jax.config.values["jax_compilation_cache_dir"]
    return None if folder is None else Path(folder) / PART


def _copy_missing(source: Path, target: Path) -> None:
    """Copies the files that are not there yet; one that cannot be copied costs identity at worst, never the run."""
    if not source.is_dir():
        return
    with contextlib.suppress(OSError):
        target.mkdir(parents=True, exist_ok=True)
        for file in sorted(source.iterdir()):
            if file.is_file() and not (target / file.name).exists():
                part = target / f".{file.name}.part"
                shutil.copyfile(file, part)
                part.replace(target / file.name)
