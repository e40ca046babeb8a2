"""Limits on what an input file may hold, so that a damaged or hostile one cannot fill memory or run for hours.

They belong to a machine, not to an experiment: one environment variable changes them, no setting does.
"""

import os
from typing import NamedTuple

from rscfed_jax.config.kinds import SettingError, read_size

VARIABLE = "RSCFED_JAX_LIMITS"
UNKNOWN_MEMORY = 16 * 2**30  # assumed if the system does not report it


class Limit(NamedTuple):
    """What is counted, and how much of it is allowed unless the user says otherwise."""

    counted: str
    default: int


def _half_of_memory() -> int:
    """Half of the machine's memory: an array is copied once on its way to the clients."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        memory = 0
    return (memory if memory > 0 else UNKNOWN_MEMORY) // 2


LIMITS = {
    "bytes": Limit("bytes", _half_of_memory()),  # of a data set's or a model's file, unpacked
    "pixels": Limit("pixels", 100_000_000),  # of a picture
    "text": Limit("bytes", 256 * 2**20),  # of a JSON, JSONL or CSV file
    "config": Limit("bytes", 100_000),  # of a file for --config, --method or --model; a config.json has about 3,000
    "depth": Limit("levels", 100),  # of lists and objects in each other, in a JSON file
}


class OverLimitError(ValueError):
    """A file holds more than is allowed; the message is the reason of a refusal and says how to raise the limit."""


def limit_of(name: str) -> int:
    """How much is allowed now."""
    return read_limits()[name]


def read_limits() -> dict[str, int]:
    """All limits by name: the defaults, and what the variable says instead."""
    limits = {limit: default for limit, (_, default) in LIMITS.items()}
    text = os.environ.get(VARIABLE, "")
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, _, size = part.partition("=")
        if key.strip() not in LIMITS:
            raise SettingError(VARIABLE, text, f"must be like bytes=64GiB,pixels=1e9, with {', '.join(LIMITS)}")
        limits[key.strip()] = int(read_size(VARIABLE, size))
    return limits


def check_limit(name: str, found: int, holds: str = "has") -> None:
    """Raises an error if there is more than is allowed; `holds` is the verb, as in "unpacks to"."""
    if found > (most := limit_of(name)):
        counted = LIMITS[name].counted
        raise OverLimitError(
            f"{holds} {found:,} {counted}, but at most {most:,} are allowed; to read it, set {VARIABLE}={name}={found}"
        )
