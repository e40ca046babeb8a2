"""Memory that this process may take, by everything that limits it. JAX is not imported here, so it is known at once."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

GIB = 2**30
ROOT = Path("/")
UNLIMITED = 2**60  # bytes; control groups of the first version have a larger number where there is no limit
# Address space without which JAX, XLA and their threads do not start, but crash; 1.6 GiB did not suffice on two cores.
LEAST_ADDRESSES = 2 * GIB
# Where the compiler finds no address space it aborts the process, so that much must be left for it.
COMPILER = GIB // 2


class Room(NamedTuple):
    """How much memory there is, and what limits it."""

    bytes: float
    limit: str

    def __str__(self) -> str:
        return f"{self.bytes / GIB:.2f} GiB ({self.limit})"


def room_left(root: Path = ROOT) -> Room:
    """What this process may still take."""
    return min(_rooms_left(root), default=Room(float("inf"), "no limit is known"))


def memory_of_the_host(root: Path = ROOT) -> float:
    """Bytes that this process could have if nothing else ran here."""
    limits = [limit for limit, _ in _groups(root)]
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *limits, _address_limit()])


def check_address_space() -> None:
    """Refuses an address space in which JAX would crash."""
    if (limit := _address_limit()) < LEAST_ADDRESSES:
        needed = f"JAX needs at least {LEAST_ADDRESSES / GIB:.0f} GiB of address space"
        raise MemoryError(f"{needed}, and `ulimit -v` allows {limit / GIB:.2f}")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of Python, NumPy or XLA says that there is not enough memory."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    text = str(error)
    # XLA's errors are RuntimeErrors; a thread takes memory, too.
    exhausted = "RESOURCE_EXHAUSTED" in text or "bad_alloc" in text or "can't start new thread" in text
    return isinstance(error, RuntimeError) and exhausted


def _rooms_left(root: Path) -> Iterator[Room]:
    values = dict(line.split(":", 1) for line in _read(root / "proc/meminfo").splitlines() if ":" in line)
    if "MemAvailable" in values:
        yield Room(1024.0 * int(values["MemAvailable"].split()[0]), "free on this machine")
    for limit, used in _groups(root):
        yield Room(max(0.0, limit - used), "left by the limit of the control group")
    if (limit := _address_limit()) < UNLIMITED:
        used = int((_read(root / "proc/self/statm") or "0").split()[0]) * os.sysconf("SC_PAGE_SIZE")
        yield Room(max(0.0, limit - used - COMPILER), "left by the limit of the address space, ulimit -v")


def _groups(root: Path) -> Iterator[tuple[float, float]]:
    """Limit and use, without files that need not stay in memory, of each control group that this process is in."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, place = line.split(":", 2)
        for folder in ("sys/fs/cgroup", "sys/fs/cgroup/unified") if not controllers else ("sys/fs/cgroup/memory",):
            if controllers and "memory" not in controllers.split(","):
                continue
            names = ("memory.max", "memory.current", "inactive_file")
            if controllers:
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            # The limits of all groups above hold as well. In a container, its own group may be the root.
            inner = Path(place.lstrip("/"))
            for group in {root / folder / part for part in (inner, *inner.parents)}:
                limit, used = _number(_read(group / names[0])), _number(_read(group / names[1]))
                if limit is None or limit >= UNLIMITED:
                    continue
                stat = dict(entry.split(maxsplit=1) for entry in _read(group / "memory.stat").splitlines())
                yield limit, (used or 0) - (_number(stat.get(names[2], "")) or 0)


def _number(text: str) -> float | None:
    return float(text) if text.strip().isdecimal() else None


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def _address_limit() -> float:
    try:
        import resource
    except ImportError:  # not on Windows
        return float("inf")
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return float("inf") if limit == resource.RLIM_INFINITY else float(limit)
