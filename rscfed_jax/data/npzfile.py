"""Arrays of npz files, read without unpickling."""

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rscfed_jax.config import SettingError
from rscfed_jax.data.dataset import Refuse


def read_npz(path: Path, refuse: Refuse, *, only: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Reads all arrays of an npz file, or those of some names, without unpickling.

    `refuse(reason)` makes the error to raise.
    """
    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise refuse("is not a readable npz file")
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                content = {key: arrays[key] for key in arrays.files if only is None or key in only}
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
        raise refuse(f"holds {foreign[0]!r}, which is not an array")
    return content
