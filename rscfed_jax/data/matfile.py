"""Arrays of MATLAB files, format 5, in which SVHN is published.

The format: https://www.mathworks.com/help/pdf_doc/matlab/matfile_format.pdf. `scipy.io.loadmat` reads more of it but
can crash on a damaged file: one changed byte can end the process.
"""

import itertools
import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from rscfed_jax.config.files import read_bounded
from rscfed_jax.config.limits import check_limit, limit_of

HEADER = 128  # bytes; the last four give version and byte order
VERSION_5_LITTLE_ENDIAN = b"\x00\x01IM"
MATRIX, COMPRESSED = 14, 15
TYPES = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
NUMERIC = range(6, 16)  # classes of arrays: numbers, neither text nor cells nor objects
COMPLEX = 0x08


def read_mat(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays of the file that have one of the names, as stored.

    Raises ValueError if the file is damaged, and OverLimitError if it is or unpacks to more than is allowed.
    """
    content = memoryview(read_bounded(path, "bytes"))
    if content[HEADER - 4 : HEADER] != VERSION_5_LITTLE_ENDIAN:
        raise ValueError("is not in MATLAB's format 5")
    try:
        found = (_named_array(element, names) for element in _matrices(content[HEADER:]))
        return dict(pair for pair in found if pair is not None)
    except (struct.error, zlib.error):
        raise ValueError("is damaged") from None


def _matrices(data: memoryview) -> Iterator[memoryview]:
    total = 0
    for kind, element in _elements(data):
        if kind == COMPRESSED:
            stream = zlib.decompressobj()
            unpacked = stream.decompress(element, limit_of("bytes") - total + 1)
            total += len(unpacked)
            check_limit("bytes", total, "unpacks to at least")
            if not stream.eof:
                raise ValueError("is damaged or incomplete")
            yield from (inner for kind, inner in _elements(memoryview(unpacked)) if kind == MATRIX)
        elif kind == MATRIX:
            yield element


def _elements(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yields type and content of each element."""
    place = 0
    while place < len(data):
        kind, length = struct.unpack_from("<II", data, place)
        start, room, multiple = place + 8, len(data) - place - 8, 8
        if kind >> 16:  # a short one: length, type and content in eight bytes
            kind, length = kind & 0xFFFF, kind >> 16
            start, room, multiple = place + 4, 4, 4
        if length > room:
            raise ValueError("is damaged or incomplete")
        yield kind, data[start : start + length]
        place = start + length
        if kind != COMPRESSED:
            place += -length % multiple


def _named_array(matrix: memoryview, names: Sequence[str]) -> tuple[str, np.ndarray] | None:
    parts = _elements(matrix)
    (_, flags), (_, dims), (_, letters) = _three(parts)
    name = bytes(letters).decode("latin-1")
    if name not in names:
        return None
    kind, content = next(parts, (0, memoryview(b"")))
    if len(flags) != 8 or flags[0] not in NUMERIC or flags[1] & COMPLEX or kind not in TYPES:
        raise ValueError(f"holds {name}, but not as an array of real numbers")
    shape = np.frombuffer(dims, "<i4").tolist()
    values = np.frombuffer(content, TYPES[kind])
    if min(shape, default=-1) < 0 or math.prod(shape) != len(values):
        raise ValueError(f"holds {len(values)} numbers as {name}, which should have the shape {shape}")
    return name, values.reshape(shape, order="F")


def _three(parts: Iterator[tuple[int, memoryview]]) -> list[tuple[int, memoryview]]:
    first = list(itertools.islice(parts, 3))
    if len(first) < 3:
        raise ValueError("is damaged or incomplete")
    return first
