"""Npz files from untrusted sources: what an array says of itself is compared with its bytes before any is made."""

import io
import math
import zipfile
from typing import BinaryIO

import numpy as np

from rscfed_jax.config.limits import check_limit

READ_HEADER = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class WrongArrayError(ValueError):
    """An array that is never read; the message is the reason of a refusal."""


def unpacked_size(file: BinaryIO) -> int:
    """The bytes that the members of a zip file say they unpack to; reading stops there, whatever they really hold."""
    with zipfile.ZipFile(file) as archive:
        return sum(member.file_size for member in archive.infolist())


def check_packed(content: bytes) -> None:
    """Refuses a file in PyTorch's format, a zip file, that unpacks to more than is allowed.

    One that is damaged raises a ValueError; one in PyTorch's older format, which is not packed, is left to its reader.
    """
    file = io.BytesIO(content)
    if not content.startswith(b"PK") and not zipfile.is_zipfile(file):
        return
    try:
        size = unpacked_size(file)
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError):
        raise ValueError("is damaged") from None
    check_limit("bytes", size, "unpacks to")


def check_shapes(file: BinaryIO) -> None:
    """Refuses an array whose header promises more than its bytes hold, or that is pickled.

    NumPy would first make room for what the header promises.
    """
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if not member.filename.endswith(".npy"):
                continue
            with archive.open(member) as array:
                version = np.lib.format.read_magic(array)
                if version not in READ_HEADER:
                    raise WrongArrayError(f"holds {member.filename} in a version of the npy format that is not read")
                shape, _, dtype = READ_HEADER[version](array)
                if dtype.hasobject:
                    raise WrongArrayError("holds pickled objects, which are never read")
                if math.prod(shape) * max(dtype.itemsize, 1) > member.file_size:
                    name, sides = member.filename.removesuffix(".npy"), ",".join(map(str, shape))
                    raise WrongArrayError(f"holds {name} of shape {sides}, but only {member.file_size:,} bytes")
