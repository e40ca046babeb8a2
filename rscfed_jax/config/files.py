"""Files that are written atomically, and the location of the cache."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any


def cache_folder(part: str) -> Path:
    """Where one kind of things is kept between runs: decoded pictures, compiled programs."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "rscfed_jax" / part


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


def write_json(path: str | Path, content: dict[str, Any]) -> None:
    """Writes a JSON file as a whole, a line for each key."""
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()]
    write_whole(path, "{\n" + ",\n".join(lines) + "\n}\n")
