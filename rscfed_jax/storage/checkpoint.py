"""Checkpoints of a run: named NumPy arrays in a directory that appears only when it is complete.

The checkpoint of round R is `checkpoints/R/` with a folder for each item, which holds one npz file. The zip format has
a checksum for every array in it, so that a changed byte is noticed.
"""

import errno
import itertools
import os
import re
import shutil
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import numpy as np

from rscfed_jax.config import SettingError
from rscfed_jax.config.files import open_regular
from rscfed_jax.config.limits import OverLimitError, check_limit
from rscfed_jax.config.npzfile import check_shapes, unpacked_size

KEPT = 3
FILE = "arrays.npz"
ZIP_END = 22  # bytes of the record at the end of a zip file, which counts its members
UNFINISHED = (".*.part", "*.orbax-checkpoint-tmp*")  # of this version, and of 0.1, which wrote through Orbax
OF_THE_MACHINE = (errno.EIO, errno.ESTALE, errno.EACCES, errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # not of the file

Arrays = dict[str, np.ndarray]
Warn = Callable[[str], None]


def round_of(name: str) -> int | None:
    """The round whose checkpoint has this directory name, None for any other name. Warm-up rounds are negative."""
    return int(name) if re.fullmatch(r"0|-?[1-9][0-9]{0,17}", name) else None


def rounds_in(directory: Path) -> set[int]:
    """The rounds that have a checkpoint in a directory, damaged or not."""
    if not directory.is_dir():
        return set()
    rounds = (round_of(path.name) for path in directory.iterdir() if path.is_dir())
    return {round_ for round_ in rounds if round_ is not None}


class Checkpoints:
    """The newest few checkpoints of a run and the most accurate one. A thread writes them while training continues.

    The caller holds the lock of the run directory unless it only reads.
    """

    def __init__(self, directory: str | Path, *, read_only: bool = False):
        self.directory = Path(directory).absolute()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None  # of the last writing
        self._limited = read_only  # a run may resume from what it wrote itself, however large
        if read_only:
            return
        with self._refusing():
            self.directory.mkdir(parents=True, exist_ok=True)
            sync_directory(self.directory.parent)
            for pattern in UNFINISHED:
                for left in self.directory.glob(pattern):
                    shutil.rmtree(left)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        try:
            self.wait()
        except SettingError:
            if kind is None:  # else the first error is the one to report
                raise

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Says in one line why a checkpoint cannot be written."""
        try:
            yield
        except Exception as error:
            reason = f"checkpoint cannot be written: {_reason(error)}"
            raise SettingError("out", self.directory.parent, reason) from None

    def save(
        self,
        round_: int,
        items: dict[str, Arrays],
        *,
        accuracy: dict[int, float],
        sync: Callable[[], None] = lambda: None,
    ) -> None:
        """Starts to write the checkpoint of a round; `accuracy`, by evaluated round, says which ones to keep.

        The arrays must not change until they are written. `sync` returns when files that the checkpoint refers to are
        on disk. An error of the last writing is raised here.
        """
        self.wait()
        part = self.directory / f".{round_}.{os.getpid()}.part"
        with self._refusing():
            part.mkdir(exist_ok=True)  # here, so that a directory that is read-only or gone is reported at once
            # A daemon, unlike the threads of an executor, does not keep a process alive that is about to end.
            self._thread = threading.Thread(target=self._write, args=(round_, part, items, accuracy, sync), daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Returns when everything is written; an error in that is raised here."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            with self._refusing():
                raise error

    def _write(
        self,
        round_: int,
        part: Path,
        items: dict[str, Arrays],
        accuracy: dict[int, float],
        sync: Callable[[], None],
    ) -> None:
        """What the thread does. Everything is on disk before it has its name, also after a power loss."""
        try:
            sync()
            for name, arrays in items.items():
                (part / name).mkdir(exist_ok=True)
                with (part / name / FILE).open("wb") as file:
                    np.savez(file, **arrays)  # type: ignore[arg-type]  # NumPy's stubs see allow_pickle in it
                    file.flush()
                    os.fsync(file.fileno())
                sync_directory(part / name)
            sync_directory(part)
            if (place := self.directory / str(round_)).exists():
                _remove(place)
            part.rename(place)
            sync_directory(self.directory)
            self._remove_superseded(accuracy)
        except Exception as error:
            self._error = error
            shutil.rmtree(part, ignore_errors=True)

    def _remove_superseded(self, accuracy: dict[int, float]) -> None:
        """Keeps the newest few checkpoints and the one with the best accuracy."""
        rounds = sorted(rounds_in(self.directory))
        best = max((r for r in rounds if r in accuracy), key=lambda r: accuracy[r], default=None)
        for round_ in rounds[:-KEPT]:
            if round_ != best:
                _remove(self.directory / str(round_))

    def rounds(self) -> set[int]:
        """The rounds that have a checkpoint, damaged or not."""
        try:
            return rounds_in(self.directory)
        except OSError as error:
            raise SettingError("out", self.directory, f"cannot be read now: {_reason(error)}") from None

    def read(
        self, round_: int, names: Sequence[str], warn: Warn, *, put_aside: bool, also: Sequence[str] = ()
    ) -> dict[str, Arrays] | None:
        """The named items of a checkpoint, or None, and a warning, if it is damaged; items `also` if it has them.

        `put_aside` moves a damaged one to `damaged/` beside the checkpoints: the run can write that round again.
        """
        place = self.directory / str(round_)
        try:
            there = [name for name in also if (place / name).exists()]
            return {name: read_arrays(place / name / FILE, limited=self._limited) for name in (*names, *there)}
        except OverLimitError as error:
            raise SettingError("out", place, str(error)) from None
        except Exception as error:  # the type of the error depends on which byte is wrong
            if isinstance(error, MemoryError) or getattr(error, "errno", None) in OF_THE_MACHINE:
                raise SettingError("out", place, f"cannot be read now: {_reason(error)}") from None
            warn(f"checkpoint {place} is damaged and skipped: {' '.join(_reason(error).split())}")
        if put_aside:
            aside = self.directory.with_name("damaged")
            with self._refusing():
                aside.mkdir(exist_ok=True)
                free = (target for n in itertools.count() if not (target := aside / f"{round_}-{n}").exists())
                place.rename(next(free))
        return None

    def newest(self, names: Sequence[str], warn: Warn) -> tuple[int, dict[str, Arrays]] | None:
        """Round and named items of the newest valid checkpoint."""
        for round_ in sorted(self.rounds(), reverse=True):
            if (items := self.read(round_, names, warn, put_aside=False)) is not None:
                return round_, items
        return None

    def item(self, name: str, warn: Warn) -> dict[int, Arrays]:
        """An item of all checkpoints that have it, by round."""
        read = {round_: self.read(round_, (), warn, put_aside=False, also=[name]) for round_ in self.rounds()}
        return {round_: items[name] for round_, items in read.items() if items}

    def forget_after(self, round_: int) -> None:
        """Removes newer checkpoints: the run will write those rounds again."""
        self.wait()
        for newer in self.rounds():
            if newer > round_:
                with self._refusing():
                    _remove(self.directory / str(newer))


def newest_common(
    runs: Sequence[Checkpoints], names: Sequence[str], warn: Warn, *, also: Sequence[str] = ()
) -> tuple[int, list[dict[str, Arrays]]] | None:
    """Round and named items, by run, of the newest checkpoint that is valid in all runs; None if no run has any.

    Items `also` are there if the checkpoint has them.
    """
    while runs and (common := set.intersection(*(run.rounds() for run in runs))):
        newest = max(common)
        read = [run.read(newest, names, warn, put_aside=True, also=also) for run in runs]
        valid = [items for items in read if items is not None]
        if len(valid) == len(runs):
            return newest, valid
    for run in runs:
        if run.rounds():
            reason = (
                "the cells of this program share no valid checkpoint; run the command again to resume them separately"
            )
            raise SettingError("out", run.directory.parent, reason)
    return None


def read_arrays(path: Path, *, limited: bool = False) -> Arrays:
    """Reads all arrays of an npz file, with their checksums compared and nothing unpickled.

    `limited` refuses one of another's run that is larger than input files may be.
    """
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        size = os.fstat(file.fileno()).st_size
        if limited:
            check_limit("bytes", size)
        if unpacked_size(file) > size:  # a run does not compress its checkpoints
            raise ValueError("is compressed, which no checkpoint is")
        check_shapes(file)
        if (wrong := archive.testzip()) is not None:
            raise ValueError(f"wrong checksum of {wrong}")
        # The list of arrays has no checksum: a changed length in it can hide an array.
        file.seek(-ZIP_END, os.SEEK_END)
        if int.from_bytes(file.read()[10:12], "little") != len(archive.namelist()):
            raise ValueError("arrays are missing")
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def _remove(place: Path) -> None:
    """Removes a checkpoint: it loses its name first, so that a kill leaves no half of it under that name."""
    part = place.with_name(f".{place.name}.{os.getpid()}.old.part")
    place.rename(part)
    shutil.rmtree(part)


def sync_directory(directory: Path) -> None:
    """Returns when the names in a directory are on disk."""
    number = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _reason(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "not enough memory"
    return getattr(error, "strerror", None) or str(error)
