"""Files that are read with a limit or written atomically, and the location of the cache."""

import contextlib
import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from rscfed_jax.config.limits import check_limit, limit_of


def cache_folder(part: str) -> Path:
    """Where one kind of things is kept between runs: decoded pictures, compiled programs."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "rscfed_jax" / part


def open_regular(path: str | Path) -> BinaryIO:
    """Opens a file to read it; an OSError refuses a pipe or device, which may never begin or never end."""
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # or a pipe that nobody writes to would wait here
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        os.close(number)
        wrong = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(wrong, os.strerror(wrong) if wrong == errno.EISDIR else "Not a regular file", str(path))
    return os.fdopen(number, "rb")


def read_bounded(path: str | Path, limit: str) -> bytes:
    """The content of a file that the limit of this name allows; an OverLimitError if it has more."""
    with open_regular(path) as file:
        check_limit(limit, os.fstat(file.fileno()).st_size)
        content = file.read(limit_of(limit) + 1)  # one that grows meanwhile
    check_limit(limit, len(content))
    return content


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Writes a file so that a reader sees the old or the new one, never a part."""
    path = Path(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())  # or a power loss could leave the new name with nothing in it
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def remove_parts(folder: Path) -> None:
    """Removes what processes left in a folder that were killed while they wrote a file."""
    for left in folder.glob(".*.part"):
        left.unlink(missing_ok=True)


def write_json(path: str | Path, content: dict[str, Any]) -> None:
    """Writes a JSON file as a whole, a line for each key."""
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()]
    write_whole(path, "{\n" + ",\n".join(lines) + "\n}\n")
