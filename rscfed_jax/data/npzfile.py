"""Arrays of npz files, read without unpickling."""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rscfed_jax.config import SettingError
from rscfed_jax.config.files import open_regular
from rscfed_jax.config.limits import OverLimitError, check_limit
from rscfed_jax.config.npzfile import WrongArrayError, check_shapes, unpacked_size
from rscfed_jax.data.dataset import Refuse


def read_npz(path: Path, refuse: Refuse, *, only: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Reads all arrays of an npz file, or those of some names, without unpickling.

    `refuse(reason)` makes the error to raise.
    """
    try:
        with open_regular(path) as file:
            if not zipfile.is_zipfile(file):
                raise refuse("is not a readable npz file")
            check_limit("bytes", unpacked_size(file), "unpacks to")
            check_shapes(file)
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                content = {key: arrays[key] for key in arrays.files if only is None or key in only}
    except FileNotFoundError:
        raise refuse("no such file") from None
    except SettingError:
        raise
    except (OverLimitError, WrongArrayError) as error:
        raise refuse(str(error)) from None
    except Exception:  # the type of the error depends on which byte is wrong
        raise refuse("is not a readable npz file") from None
    foreign = [key for key, value in content.items() if not isinstance(value, np.ndarray)]
    if foreign:
        raise refuse(f"holds {foreign[0]!r}, which is not an array")
    return content
