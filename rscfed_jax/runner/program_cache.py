"""JAX's cache of compiled programs on disk, so that it can cost a compilation but never a run.

JAX writes an entry in place and hands what it reads to XLA. Here an entry is written aside, renamed and read with its
checksum: several processes, a full disk or a kill leave whole entries or none, and a damaged or foreign one is compiled
again. XLA's own code may also end the process while it packs or unpacks a program. A mark in the cache then tells the
next process which program it was, and that program is left out of the cache from then on.

JAX has no public way to replace its cache. Where these parts of it are not as expected, the cache is left out.
"""

import contextlib
import faulthandler
import fcntl
import functools
import glob
import hashlib
import os
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from rscfed_jax.config.files import cache_folder, write_whole

ENTRY, MARK = ".program", ".trying"
FORGOTTEN = 24 * 3600.0  # seconds after which a mark or a part of an entry counts no longer
DEATHS = 2  # without a traceback, as of processes that were killed, before a program is left out
PARTS = {"get_file_cache": None, "get_executable_and_time": (None, None), "put_executable_and_time": None}


def use_program_cache() -> None:
    """Lets JAX remember compiled programs in the user's cache, or where JAX_COMPILATION_CACHE_DIR says."""
    if not _install():
        jax.config.update("jax_enable_compilation_cache", False)
        return
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder("xla")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def _install() -> bool:
    """Puts this cache in the place of JAX's, once in a process; returns whether that is possible."""
    try:
        from jax._src import compilation_cache as parts
    except ImportError:
        return False
    if not all(callable(getattr(parts, name, None)) for name in PARTS):
        return False
    if not getattr(parts.get_file_cache, "safe", False):
        for name in ("get_executable_and_time", "put_executable_and_time"):
            setattr(parts, name, _guarded(getattr(parts, name), without=PARTS[name]))
        parts.get_file_cache = _file_cache  # type: ignore[assignment]
    return True


def _file_cache(path: str) -> tuple["ProgramCache", str]:
    return ProgramCache(Path(path)), path


_file_cache.safe = True  # type: ignore[attr-defined]


def _guarded(function: Callable[..., Any], *, without: Any) -> Callable[..., Any]:
    """The function of JAX, which packs or unpacks the program of a key, with a mark while it works."""

    @functools.wraps(function)
    def call(key: str, *arguments: Any) -> Any:
        folder = Path(jax.config.values["jax_compilation_cache_dir"] or "")
        if is_left_out(folder, key):
            return without
        with _marked(folder, key):
            return function(key, *arguments)

    return call


class ProgramCache:
    """Whole entries with checksums in a folder; what cannot be read or written is compiled instead."""

    def __init__(self, folder: Path):
        self._path = folder  # as JAX calls it
        self._warned = False
        self._safe = self._prepare()

    def _prepare(self) -> bool:
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._path.stat().st_mode & stat.S_IWOTH:  # a program from there could do anything
                self._warn("everyone can write there")
                return False
            for left in self._path.glob(".*.part"):
                if _is_old(left):
                    left.unlink()
        except OSError as error:
            self._warn(error.strerror or str(error))
        return True

    def get(self, key: str) -> bytes | None:
        """The content of an entry; None, and the entry is removed, if it is not what was written."""
        if not self._safe:
            return None
        file = self._path / f"{key}{ENTRY}"
        try:
            stored = file.read_bytes()
        except OSError:
            return None
        checksum, content = stored[:32], stored[32:]
        if checksum == _checksum(key, content):
            return content
        with contextlib.suppress(OSError):
            file.unlink()
        return None

    def put(self, key: str, content: bytes) -> None:
        """Writes an entry, if it is not there yet."""
        if not self._safe:
            return
        file = self._path / f"{key}{ENTRY}"
        try:
            if not file.exists():
                write_whole(file, _checksum(key, content) + content)
        except OSError as error:
            self._warn(error.strerror or str(error))

    def _warn(self, reason: str) -> None:
        """Tells the user once; a run is not to fail because nobody reads that."""
        if not self._warned:
            self._warned = True
            text = f"rscfed-jax: warning: compiled programs are not kept in {self._path}: {reason}; set XDG_CACHE_HOME"
            with contextlib.suppress(OSError):
                print(text, file=sys.stderr, flush=True)


def _checksum(key: str, content: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\n" + content).digest()


def is_left_out(folder: Path, key: str) -> bool:
    """Whether XLA ended a process that packed or unpacked this program.

    A mark that no process holds is that of a dead one. It holds a traceback if XLA crashed, and nothing if the process
    was killed, or if it crashed on a stack that was full.
    """
    deaths = 0
    try:
        for mark in folder.glob(f"{glob.escape(key)}.*{MARK}"):
            if _is_old(mark):
                mark.unlink(missing_ok=True)
            elif _is_free(mark):
                deaths += DEATHS if mark.stat().st_size else 1
    except OSError:
        pass
    return deaths >= DEATHS


def _is_old(file: Path) -> bool:
    return time.time() - file.stat().st_mtime > FORGOTTEN


def _is_free(mark: Path) -> bool:
    with mark.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@contextlib.contextmanager
def _marked(folder: Path, key: str) -> Iterator[None]:
    """A mark that is there while the block runs, and after the process if it dies in it."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # a folder that cannot be written has no entries to write either
            mark = folder / f"{key}.{socket.gethostname()}.{os.getpid()}{MARK}"
            file = held.enter_context(mark.open("wb"))
            held.callback(mark.unlink, missing_ok=True)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not faulthandler.is_enabled():
                faulthandler.enable(file)
                held.callback(faulthandler.disable)
        yield
