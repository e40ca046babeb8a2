"""Finds runs and reads what they left. Files that cannot be right are refused by name; no JAX is imported here."""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rscfed_jax.config import HASHES, RECORD, SettingError
from rscfed_jax.config.registry import metrics
from rscfed_jax.storage.records import Record, best_of, final_of, number_in
from rscfed_jax.storage.run_directory import RunDirectory, read_json, stored_config

SETTING = "DIR"  # how the argument is named in a refusal


@dataclass(frozen=True)
class Partition:
    """Who holds what: partition.json. Very many clients are not listed in it."""

    class_names: list[str]
    class_counts: list[list[int]]  # [clients][classes]; empty if they are not listed
    labels: list[int]  # [clients] labels held; empty if they are not listed
    server: int | None = None  # the row that is no client but the server, the last


@dataclass(frozen=True)
class Run:
    """One run directory as it was found."""

    path: Path
    settings: dict[str, Any]
    records: list[Record]  # of metrics.jsonl; a metric that is not a number is None
    final: dict[str, float | None]  # every metric; None for one that its version did not record
    best: dict[str, float | None]  # with its round
    finished: bool
    diverged: str | None  # why an unfinished run will stay so, if it is known
    partition: Partition | None
    confusion: list[list[int]] | None  # [classes][classes], rows are the true classes
    summary: dict[str, Any]  # empty in a run that has none yet

    @property
    def seed(self) -> int:
        """What the run's randomness was derived from."""
        return self.settings.get("seed", 0)

    @property
    def class_names(self) -> list[str]:
        """The classes of the confusion matrix: their numbers if the partition is not known."""
        numbers = [str(label) for label in range(len(self.confusion or []))]
        names = self.partition.class_names if self.partition else numbers
        return names if len(names) == len(numbers) else numbers

    @property
    def last_round(self) -> int:
        """The round that was evaluated last."""
        return self.records[-1]["round"]


@dataclass(frozen=True)
class Found:
    """Runs, and directories below those given that hold none yet."""

    runs: list[Run]
    empty: list[Path]


def collect(directories: Iterable[str | Path]) -> Found:
    """Reads the runs in the given directories or below them, each once, in order.

    A run that has not evaluated a round yet is refused if it was given by name, and left out if it was found below.
    """
    runs: dict[Path, Run] = {}
    empty: dict[Path, Path] = {}
    for directory in map(Path, directories):
        places = find_runs(directory)
        if not places:
            raise SettingError(SETTING, directory, "is not a run directory with config.json, nor are there any below")
        for place in places:
            key = place.resolve()
            if key in runs:
                continue
            if place != directory and not _has_metrics(place):
                empty[key] = place
            else:
                runs[key] = read_run(place)
    if not runs:
        first = next(iter(empty.values()), "")
        raise SettingError(SETTING, first, "has no metrics yet: metrics.jsonl there is missing or empty")
    return Found(list(runs.values()), [place for key, place in empty.items() if key not in runs])


def find_runs(directory: Path) -> list[Path]:
    """The directory itself if it is a run, else the runs below it in the order of their names."""
    found = []
    for place, folders, files in os.walk(directory):
        if "config.json" in files:
            found.append(Path(place))
            folders.clear()
        folders.sort(key=_natural)
    return found


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts seed2 before seed10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _has_metrics(place: Path) -> bool:
    file = RunDirectory(place).metrics
    return file.is_file() and file.stat().st_size > 0


def read_run(path: Path) -> Run:
    """Reads one run directory, be its run finished or not."""
    directory = RunDirectory(path)
    settings = _settings_of(directory)
    if not _has_metrics(path):
        raise SettingError(SETTING, path, "has no metrics yet: metrics.jsonl there is missing or empty")
    records = directory.read_metrics(setting=SETTING)
    summary = read_json(directory.summary, setting=SETTING) if directory.summary.exists() else {}
    # A run that was resumed for more rounds has the summary of its first part until it ends.
    reached, wanted = _count(summary.get("rounds")), _count(settings.get("rounds"))
    finished = bool(summary) and not 0 < reached < wanted
    if finished:
        final = _metrics_in(summary, "final", directory.summary, tuple(metrics()))
        best = _metrics_in(summary, "best", directory.summary, ("round", *metrics()))
    else:
        final, best = final_of(records), best_of(records)
    return Run(
        path=path,
        settings=settings,
        records=records,
        final=final,
        best=best,
        finished=finished,
        diverged=_why_diverged(directory) if not finished and directory.diverged.exists() else None,
        partition=_read_partition(directory.partition) if directory.partition.exists() else None,
        confusion=_confusion_in(summary, directory.summary) if finished else None,
        summary=summary,
    )


def _why_diverged(directory: RunDirectory) -> str:
    return str(read_json(directory.diverged, setting=SETTING).get("why", "its model is no longer finite"))


def _settings_of(directory: RunDirectory) -> dict[str, Any]:
    """The stored settings; those that the version which wrote them did not have get their defaults, to compare."""
    stored = read_json(directory.config, setting=SETTING)
    try:
        settings = stored_config(directory.config, setting=SETTING).to_dict() | stored
    except (SettingError, TypeError):
        settings = dict.fromkeys(HASHES) | stored  # a newer version may know values that this one does not
    settings.pop(RECORD, None)  # it tells how the settings came about, not what they are
    return settings


def _metrics_in(summary: dict[str, Any], part: str, file: Path, names: Sequence[str]) -> dict[str, float | None]:
    content = summary.get(part)
    try:
        if not isinstance(content, dict):
            raise ValueError("is not an object")
        return {name: number_in(content, name) for name in names}
    except ValueError as error:
        raise SettingError(SETTING, file, f"{part} {error}") from None


def _count(value: object) -> int:
    """The value if it is a whole number, else zero."""
    return value if type(value) is int else 0


def _is_table(rows: object) -> bool:
    """Whether it is a list of equally long, not empty lists of whole numbers."""
    return (
        isinstance(rows, list)
        and all(isinstance(row, list) for row in rows)
        and len({len(row) for row in rows}) == 1
        and len(rows[0]) > 0
        and all(type(value) is int and value >= 0 for row in rows for value in row)
    )


def _read_partition(file: Path) -> Partition:
    content: Any = read_json(file, setting=SETTING)
    if "checksum" in content and isinstance(content.get("class_names"), list):
        return Partition([str(name) for name in content["class_names"]], [], [])
    counts, labels, names = (content.get(name) for name in ("class_counts", "labels", "class_names"))
    right = _is_table(counts) and _is_table([labels]) and isinstance(names, list)
    if not right or len(labels) != len(counts) or len(names) != len(counts[0]):
        reason = "needs class_names, class_counts of each client and class, and labels of each client"
        raise SettingError(SETTING, file, reason)
    server = content.get("server")
    if server not in (None, len(labels) - 1):
        raise SettingError(SETTING, file, f"server is {server!r}, but must be null or its row, the last")
    return Partition([str(name) for name in names], counts, labels, server)


def _confusion_in(summary: dict[str, Any], file: Path) -> list[list[int]] | None:
    confusion = summary.get("confusion")
    if confusion is None:
        return None
    if not _is_table(confusion) or len(confusion) != len(confusion[0]):
        raise SettingError(SETTING, file, "confusion is not a square table of whole numbers")
    return confusion
