"""Arrays of npz files, read without unpickling."""

import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rscfed_jax.config import SettingError
from rscfed_jax.config.files import open_regular
from rscfed_jax.config.limits import OverLimitError, check_limit
from rscfed_jax.config.npzfile import WrongArrayError, check_shapes, unpacked_size
from rscfed_jax.data.dataset import Refuse
from rscfed_jax.data.images import MAPPED_BYTES

LOCAL_HEADER = 30  # bytes before a member of a zip file, of which the last four are the lengths of what follows them


def read_npz(
    path: Path, refuse: Refuse, *, only: Sequence[str] | None = None, mapped: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Reads all arrays of an npz file, or those of some names, without unpickling.

    `refuse(reason)` makes the error to raise. Of the names `mapped`, large arrays that the file does not compress are
    mapped into memory: a part of them is read when it is asked for.
    """
    try:
        with open_regular(path) as file:
            if not zipfile.is_zipfile(file):
                raise refuse("is not a readable npz file")
            check_limit("bytes", unpacked_size(file), "unpacks to")
            check_shapes(file)
            file.seek(0)
            large = {name: array for name in mapped if (array := _mapped(path, name)) is not None}
            with np.load(file, allow_pickle=False) as arrays:
                wanted = [key for key in arrays.files if only is None or key in only]
                content = {key: large[key] if key in large else arrays[key] for key in wanted}
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


def _mapped(path: Path, name: str) -> np.ndarray | None:
    """A large array of the file, mapped; None if it is small, compressed, or not one that can be mapped."""
    with zipfile.ZipFile(path) as archive:
        found = next((info for info in archive.infolist() if info.filename == f"{name}.npy"), None)
    if found is None or found.compress_type != zipfile.ZIP_STORED or found.file_size <= MAPPED_BYTES:
        return None
    with path.open("rb") as file:
        file.seek(found.header_offset)
        header = file.read(LOCAL_HEADER)
        file.seek(sum(struct.unpack("<HH", header[-4:])), 1)  # the name and what else is between it and the content
        version = np.lib.format.read_magic(file)
        read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in read_header:
            return None
        shape, by_columns, dtype = read_header[version](file)
        if dtype.hasobject or by_columns:
            return None
        return np.memmap(path, dtype, "r", file.tell(), shape)
