"""JSON and TOML files from untrusted sources: read in bounded time, or refused in one line."""

import json
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rscfed_jax.config.files import read_bounded
from rscfed_jax.config.kinds import SettingError
from rscfed_jax.config.limits import OverLimitError, check_limit, limit_of

LONGEST_LINE = 2_000  # of TOML: the time to read a dotted key grows with the square of its length
MOST_LETTERS = 60  # of a value, in a refusal
Refuse = Callable[[str], SettingError]


def is_toml(path: Path) -> bool:
    """Whether the file's name says that it is TOML."""
    return path.suffix.lower() == ".toml"


def read_document(path: Path, refuse: Refuse) -> dict[str, Any]:
    """The JSON object or TOML document of a file."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise refuse("is a directory; give a config.json or a TOML file")
        if not stat.S_ISREG(mode) or not (is_toml(path) or path.suffix.lower() == ".json"):
            raise refuse("must be a file that ends in .json or .toml")
        content = read_bounded(path, "config")
    except OverLimitError as error:
        raise refuse(str(error)) from None
    except OSError as error:
        raise refuse(f"cannot be read: {error.strerror}") from None
    kind, read = ("TOML", _read_toml) if is_toml(path) else ("JSON", _read_json)
    try:
        return read(content.decode())
    except UnicodeDecodeError as error:
        raise refuse(f"is not UTF-8 text: byte {error.start}") from None
    except OverLimitError as error:
        raise refuse(str(error)) from None
    except ValueError as error:
        raise refuse(f"is not valid {kind}: {cut(str(error), 100)}") from None


def _read_toml(text: str) -> dict[str, Any]:
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > LONGEST_LINE:
            raise ValueError(
                f"line {number} is longer than {LONGEST_LINE:,} characters; split long lists over several lines"
            )
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_json(text: str | bytes, **hooks: Any) -> Any:
    """The value of a JSON text; a ValueError if it is none, an OverLimitError if it is nested too deeply.

    What is deeper than Python's own recursion limit cannot be read, nor printed in a refusal if it is nearly as deep.
    """
    try:
        value = json.loads(text, **hooks)
    except RecursionError:
        raise OverLimitError("is nested too deeply for Python to read") from None
    brackets = (text.count(b"[") + text.count(b"{")) if isinstance(text, bytes) else text.count("[") + text.count("{")
    if brackets > limit_of("depth"):  # fewer cannot be that deep, and most files are small
        check_limit("depth", _depth_of(value), "is nested in")
    return value


def _depth_of(value: Any) -> int:
    """How many lists and objects are in each other."""
    depth, inside = 0, [value]
    while inside := [part for part in inside if isinstance(part, dict | list)]:
        depth += 1
        inside = [part for outer in inside for part in (outer.values() if isinstance(outer, dict) else outer)]
    return depth


def _read_json(text: str) -> dict[str, Any]:
    found = parse_json(text, object_pairs_hook=_unique)
    if not isinstance(found, dict):
        raise ValueError("it must be an object of settings")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for name, value in pairs:
        if name in content:
            raise ValueError(f"{cut(name)} appears twice")
        content[name] = value
    return content


def shown(value: Any) -> str:
    """A value as the file has it, in a few letters."""
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    return cut(json.dumps(value) if value is None or isinstance(value, str | int | float) else str(value))


def cut(text: str, most: int = MOST_LETTERS) -> str:
    """A text that fits into a line."""
    printable = text if text.isprintable() else ascii(text)[1:-1]
    return printable if len(printable) <= most else f"{printable[:most]}..."
