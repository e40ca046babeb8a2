"""What a setting accepts: how its text is read, which values are valid, and how errors describe them."""

import math
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

MAX_INT = 2**31 - 1  # the largest number that a counter on the device holds
UNITS = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


class SettingError(ValueError):
    """A setting has a value that is not allowed; the message is one line for the user."""

    def __init__(self, setting: str, value: object, allowed: str):
        self.setting = setting
        flag = setting if setting.isupper() else "--" + setting.replace("_", "-")
        super().__init__(" ".join(f"{flag} {value}: {allowed}".split()))


class Kind(NamedTuple):
    """How a setting's text is read, which values are valid, and how errors describe them."""

    read: Callable[[str], Any]
    accepts: Callable[[Any], bool]
    allowed: str
    metavar: str


class Setting(NamedTuple):
    """A setting's name, its default, what it accepts, and what it is for."""

    name: str
    default: Any  # None: resolved from preset, data set or method, or left open
    kind: Kind
    help: str
    group: str

    @property
    def flag(self) -> str:
        """The name of its flag."""
        return "--" + self.name.replace("_", "-")

    def read(self, text: str) -> Any:
        """Parses a text from the command line."""
        try:
            return self.kind.read(text)
        except (ValueError, KeyError, OverflowError):
            raise SettingError(self.name, text, f"must be {self.kind.allowed}") from None

    def checked(self, value: Any) -> Any:
        """The value, as a float where the setting is one."""
        if not self.kind.accepts(value):
            raise SettingError(self.name, value, f"must be {self.kind.allowed}")
        return float(value) if self.kind.metavar.startswith("F") and is_int(value) else value


def plain(value: Any) -> Any:
    """A NumPy number as Python's own and a path as a text, which JSON can hold; anything else as it is."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.item() if isinstance(value, np.generic) else value


def is_int(value: object) -> bool:
    """Whether it is a whole number; booleans do not count."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    """A number that float32 represents without overflow or underflow."""
    return (is_int(value) or isinstance(value, float)) and (value == 0 or 1e-30 < abs(value) < 1e30)


def whole(low: int, high: int = MAX_INT) -> Kind:
    """Whole numbers from `low` to `high`."""
    bounds = f"of at least {low}" if high == MAX_INT else f"from {low} to {high}"
    return Kind(int, lambda v: is_int(v) and low <= v <= high, f"a whole number {bounds}", "N")


def number(low: float = -math.inf, high: float = math.inf, *, above: float = -math.inf) -> Kind:
    """Numbers from `low` to `high` that are greater than `above`."""
    parts = []
    if above > -math.inf:
        parts.append(f"above {above:g}")
    if low > -math.inf and high < math.inf:
        parts.append(f"from {low:g} to {high:g}")
    elif low > -math.inf:
        parts.append(f"of at least {low:g}")
    elif high < math.inf:
        parts.append(f"of at most {high:g}")
    allowed = f"a number {' and '.join(parts)}".strip()
    return Kind(float, lambda v: _is_number(v) and low <= v <= high and v > above, allowed, "F")


def one_of(*choices: str) -> Kind:
    """One of some words."""
    return Kind(str, lambda v: v in choices, "one of " + ", ".join(choices), "|".join(choices))


def or_word(kind: Kind, word: str | None) -> Kind:
    """Accepts what `kind` accepts, or one word besides (None stands for a setting that is not given)."""

    def read(text: str) -> Any:
        return text if text == word else kind.read(text)

    also = f", or {word}" if word else ""
    metavar = f"{kind.metavar}|{word}" if word else kind.metavar
    return Kind(read, lambda v: v == word or kind.accepts(v), kind.allowed + also, metavar)


TEXT = Kind(str, lambda v: isinstance(v, str) and v != "", "a text", "TEXT")
PATH = Kind(str, lambda v: v is None or (isinstance(v, str) and v != ""), "a path", "PATH")
SWITCH = Kind(
    lambda text: {"true": True, "false": False}[text.lower()], lambda v: isinstance(v, bool), "true or false", ""
)


def kind_of(allowed: str) -> Kind:
    """The kind that a declaration's text describes; a ValueError if it describes none.

    Texts are like `0..1`, `0..`, `above 0`, `above 0..1`, `whole 1..9`, `true|false` and `one|other`.
    """
    text = allowed.strip()
    if text == "true|false":
        return SWITCH
    if "|" in text:
        return one_of(*(word.strip() for word in text.split("|")))
    match = re.fullmatch(r"(whole |above )?\s*([-+.\deE]+)\s*(\.\.)?\s*([-+.\deE]*)", re.sub(r"\.\.", " .. ", text))
    if match is None:
        raise ValueError("must be like 0..1, 0.., above 0, above 0..1, whole 1..9, true|false or one|other")
    what, low, dots, high = match.groups()
    if what == "whole ":
        return whole(int(low), int(high) if high else MAX_INT)
    if what == "above ":
        return number(above=float(low), high=float(high) if high else math.inf)
    if dots is None:
        raise ValueError("must be a range like 0..1 or 0..")
    return number(float(low), float(high) if high else math.inf)


def read_size(name: str, text: str) -> float:
    """Reads a number with a unit, as in 16GiB, 1.5e13 or 20T."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*([A-Za-z]*)", text.strip())
    unit = match and match[2].upper()
    unit = unit if unit in UNITS else unit and unit.removesuffix("B")
    if match is None or unit not in UNITS or not 0 < float(match[1]) * UNITS[unit] < 1e30:
        raise SettingError(name, text, "must be a number above 0, with an optional unit, as in 16GiB, 20T or 1.5e13")
    return float(match[1]) * UNITS[unit]
