"""A user's own images as one npz file, and npz files in general."""

import zipfile
import zlib
from pathlib import Path

import numpy as np

from rscfed_jax.config import Config, SettingError
from rscfed_jax.data.dataset import Dataset, Refuse, check_images, hold_out, refuse_file

NPZ_KEYS = ("train_images", "train_labels", "test_images", "test_labels")


def from_npz(config: Config) -> Dataset:
    """A user's own images; without test arrays a seeded 80/20 split is made."""
    path = Path(config.data_dir or ".") / config.dataset.removeprefix("npz:")
    refuse = refuse_file(config, path)
    arrays = read_npz(path, refuse)
    given = [key for key in NPZ_KEYS if key in arrays]
    if given not in (list(NPZ_KEYS), list(NPZ_KEYS[:2])):
        missing = ", ".join(key for key in NPZ_KEYS if key not in arrays)
        raise refuse(f"lacks {missing}; needed are train_images and train_labels, with both test arrays or neither")
    classes = check_images(arrays["train_images"], arrays["train_labels"], "train", refuse)
    if classes < 2:
        raise refuse("train_labels must hold at least two classes, numbered from 0")
    if given == list(NPZ_KEYS):
        test_classes = check_images(arrays["test_images"], arrays["test_labels"], "test", refuse)
        if test_classes > classes:
            raise refuse(f"test_labels holds {test_classes - 1}, but train_labels only 0 to {classes - 1}")
        if arrays["train_images"].shape[1:] != arrays["test_images"].shape[1:]:
            raise refuse("train_images and test_images must have the same height, width and channels")
    else:
        kept, held_out = hold_out(len(arrays["train_images"]), config.seed)
        for what in ("images", "labels"):
            arrays[f"test_{what}"] = arrays[f"train_{what}"][held_out]
            arrays[f"train_{what}"] = arrays[f"train_{what}"][kept]
    return Dataset(
        train_images=arrays["train_images"],
        train_labels=arrays["train_labels"].astype(np.int32),
        test_images=arrays["test_images"],
        test_labels=arrays["test_labels"].astype(np.int32),
        classes=classes,
        origin=str(path),
    )


def read_npz(path: Path, refuse: Refuse) -> dict[str, np.ndarray]:
    """Reads all arrays of an npz file without unpickling; `refuse(reason)` makes the error to raise."""
    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise refuse("is not a readable npz file")
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                content = {key: arrays[key] for key in arrays.files}
    except FileNotFoundError:
        raise refuse("no such file") from None
    except SettingError:
        raise
    except ValueError as error:
        pickled = "allow_pickle" in str(error)
        raise refuse(
            "holds pickled objects, which are never read" if pickled else "is not a readable npz file"
        ) from None
    except (OSError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error, MemoryError):
        raise refuse("is not a readable npz file") from None
    foreign = [key for key, value in content.items() if not isinstance(value, np.ndarray)]
    if foreign:
        raise refuse(f"holds {foreign[0]!r}, which is no array")
    return content
