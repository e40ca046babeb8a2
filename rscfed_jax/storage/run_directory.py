"""The run directory and its files. JAX is not imported here, so a directory is checked at once."""

import contextlib
import fcntl
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rscfed_jax.config import HASHES, RECORD, SETTINGS, Config, SettingError
from rscfed_jax.config.documents import parse_json
from rscfed_jax.config.files import read_bounded, remove_parts, write_json, write_whole
from rscfed_jax.config.limits import OverLimitError
from rscfed_jax.config.presets import with_known_preset
from rscfed_jax.config.registry import METHODS, NO_FILE, is_path
from rscfed_jax.storage.checkpoint import round_of, rounds_in
from rscfed_jax.storage.records import read_record

# A resumed run may differ in these; rounds only upward.
MAY_CHANGE = (
    *("rounds", "checkpoint_every", "chunk", "devices", "population", "gpu_graphs"),
    *("data_dir", "download", "download_from"),
)


class RunDirectory:
    """Where a run leaves what it found. Nothing is written before `open`."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.partition = self.path / "partition.json"
        self.metrics = self.path / "metrics.jsonl"
        self.summary = self.path / "summary.json"
        self.curve = self.path / "curve.png"
        self.pseudo_labels = self.path / "pseudo_labels.png"  # of a method that has them
        self.checkpoints = self.path / "checkpoints"
        self.clients = self.path / "clients.bin"  # states of clients, with --population disk
        self.device = self.path / "device.json"  # how the run uses it
        self.tuning = self.path / "tuning"  # XLA's choices for a GPU
        self.diverged = self.path / "diverged.json"  # of a grid's cell whose model is no longer finite
        self.lock = self.path / ".lock"

    @property
    def saved_rounds(self) -> list[int]:
        """The rounds that have a checkpoint, damaged or not."""
        return sorted(rounds_in(self.checkpoints))

    @property
    def has_diverged(self) -> bool:
        """Whether it is a cell whose model is no longer finite; it may have a summary of fewer rounds."""
        return self.diverged.exists()

    def check(self, config: Config, *, resume: bool) -> None:
        """Refuses a directory that holds another run or cannot be written."""
        with self.refusing():
            self._check(config, resume=resume)
            if self.lock.exists():
                with self._locked():
                    pass

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Says in one line that the directory cannot be written, be the disk full, read-only or gone."""
        try:
            yield
        except OSError as error:
            raise SettingError("out", self.path, f"cannot be written: {error.strerror}") from None

    def _check(self, config: Config, *, resume: bool) -> None:
        if self.config.exists():
            if not resume:
                raise SettingError(
                    "out", self.path, "already holds a run; add --resume to continue it, or choose another directory"
                )
            self._check_same_settings(config)
        elif self.metrics.exists() or self.checkpoints.exists():
            raise SettingError("out", self.path, "holds parts of a run but no config.json; choose another directory")
        parent = self.path
        while not parent.exists() and not parent.is_symlink():
            parent = parent.parent
        # A file without a name: permissions alone do not tell what a file system allows.
        with tempfile.TemporaryFile(dir=parent):
            pass

    def _check_same_settings(self, config: Config) -> None:
        if "method_hash" not in read_json(self.config, setting="out"):
            reason = "was written by version 0.1, whose runs can be evaluated, exported and reported but not resumed"
            raise SettingError("resume", self.path, reason)
        stored = stored_config(self.config, setting="out")
        before, now = stored.to_dict(), config.to_dict()
        for setting, argument in (("method", "method"), ("model", "network")):
            if (why := _other_file(setting, argument, before, now)) is not None:
                raise SettingError("resume", self.path, why)
        names = [name for name in {**now, **before} if name not in (*MAY_CHANGE, *HASHES, RECORD)]
        if config.method != stored.method:  # then each has settings of its own
            names = [name for name in names if name in SETTINGS]
        if different := [name for name in names if before.get(name) != now.get(name)]:
            changes = ", ".join(f"{name} was {before.get(name)} and is {now.get(name)}" for name in different)
            raise SettingError("resume", self.path, f"the run there has different settings: {changes}")
        if now["rounds"] < before["rounds"]:
            raise SettingError(
                "rounds", now["rounds"], f"must be at least {before['rounds']}, the rounds of the run that is resumed"
            )

    def _check_same_data(self, partition: dict[str, Any]) -> None:
        before = read_json(self.partition, setting="out") if self.partition.exists() else {}
        if different := [name for name in partition if name in before and before[name] != partition[name]]:
            named = ", ".join(different)
            raise SettingError("resume", self.path, f"the run there has different data: {named} in partition.json")

    @contextlib.contextmanager
    def open(self, config: Config, partition: dict[str, Any], *, resume: bool) -> Iterator[None]:
        """Makes the directory, writes settings and data, and keeps other runs out while the `with` block runs."""
        with contextlib.ExitStack() as held:
            with self.refusing():
                self.path.mkdir(parents=True, exist_ok=True)
                held.enter_context(self._locked())
                remove_parts(self.path)
                # Another run may have come and gone since the first check.
                self._check(config, resume=resume)
                self._check_same_data(partition)
                write_json(self.config, self._with_record(config.to_dict()))
                write_json(self.partition, partition)
            yield

    def _with_record(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The settings of a resumed run: what was given by hand when it began still counts as that."""
        if not self.config.exists():
            return settings
        before = read_json(self.config, setting="out").get(RECORD) or []
        return settings | {RECORD: [name for name in settings if name in settings[RECORD] or name in before]}

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Holds a lock that the system takes back from a process that ends, however it ends."""
        with self.lock.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SettingError("out", self.path, "another run is writing there; wait for it or stop it") from None
            yield

    def rewrite_metrics(self, records: list[dict[str, Any]]) -> None:
        """Replaces the metrics by `records`, as a whole."""
        with self.refusing():
            write_whole(self.metrics, "".join(json.dumps(record) + "\n" for record in records))

    def append_metrics(self, record: dict[str, Any]) -> None:
        """Adds one evaluated round."""
        with self.refusing(), self.metrics.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def read_metrics(self, *, setting: str = "out") -> list[dict[str, Any]]:
        """The evaluated rounds of a run. Its numbers, also those in lists, are None where they were NaN.

        One that the version which wrote the run did not have is absent.
        """
        try:
            lines = read_bounded(self.metrics, "text").splitlines()
        except OverLimitError as error:
            raise SettingError(setting, self.metrics, str(error)) from None
        except OSError as error:
            raise SettingError(setting, self.metrics, f"cannot be read: {error.strerror}") from None
        records = []
        for number, line in enumerate(lines, 1):
            try:
                records.append(read_record(line))
            except ValueError as error:
                raise SettingError(setting, self.metrics, f"line {number} {error}") from None
        return records

    def read_device(self) -> dict[str, Any] | None:
        """How the run has used its device so far; None if it has not begun or began before this was kept."""
        return read_json(self.device, setting="out") if self.device.exists() else None

    def read_summary(self) -> dict[str, Any]:
        """What a finished run found."""
        summary = read_json(self.summary, setting="out")
        if not summary.keys() >= {"final", "best", "rounds"}:
            raise SettingError(
                "out", self.path, "summary.json there is not that of a run; remove it, and it is written again"
            )
        return summary


def _other_file(setting: str, argument: str, before: dict[str, Any], now: dict[str, Any]) -> str | None:
    """Why a run with a method or network of the user's own cannot be resumed with the one given; None if it can."""
    key = f"{setting}_hash"
    name, stored, given = before[setting], before[key], now[key]
    if (name, stored) == (now[setting], given):
        return None
    if stored == NO_FILE:
        return f"the run there has the {setting} {name}, given as an object: give it again ({argument}=)"
    if stored is not None:
        if name == now[setting] and given not in (None, NO_FILE):
            return f"the file of {setting} {name} has changed since the run began"
        return f"the run there has the {setting} {name} of a file: give that file again (--{setting} PATH)"
    if name == now[setting]:
        return f"the run there has the built-in {setting} {name}, not a different one of that name"
    return None  # two names, which the list of settings shows


def split_checkpoint(path: str | Path) -> tuple[Path, int | None]:
    """The run directory, and the round if the path is that of a checkpoint: RUN/checkpoints/ROUND."""
    place = Path(path).absolute()
    round_ = round_of(place.name)
    if place.parent.name == "checkpoints" and round_ is not None:
        return place.parent.parent, round_
    return Path(path), None


def check_same_data(path: str | Path, dataset: str, *, class_names: list[str], test_counts: list[int]) -> None:
    """Refuses a run whose settings do not lead to the data it was trained on: a program may have given it its own."""
    partition = RunDirectory(split_checkpoint(path)[0]).partition
    stored = read_json(partition, setting="PATH") if partition.exists() else {}
    now = {"class_names": class_names, "test_counts": test_counts}
    if any(stored.get(name, value) != value for name, value in now.items()):
        raise SettingError("PATH", path, f"the run has different test samples than {dataset} now; give --dataset")


def load_config(path: str | Path, *, setting: str, or_else: str = "") -> Config:
    """The config of a finished or stopped run, given its directory or one of its checkpoints.

    `or_else` says, in an error, what else the path may be.
    """
    run, round_ = split_checkpoint(path)
    directory = RunDirectory(run)
    try:
        is_run = directory.config.exists() and directory.checkpoints.exists()
        is_run &= round_ is None or (directory.checkpoints / str(round_)).is_dir()
    except OSError:
        is_run = False
    if not is_run:
        reason = "is not a run directory with config.json and checkpoints, nor a checkpoint of one"
        raise SettingError(setting, path, f"{reason}{or_else}")
    return stored_config(directory.config, setting=setting)


def stored_config(path: Path, *, setting: str) -> Config:
    """The config in a file of this version or an older one: unknown settings are dropped, missing ones get defaults.

    The settings of a method of the user's own are all known; its file is not read.
    """
    stored = with_known_preset(read_json(path, setting=setting))
    for name in ("method", "model"):
        if is_path(stored.get(name)) and stored.get(f"{name}_hash") is None:
            raise SettingError(
                setting, path.parent, f"config.json there names a file as its {name}, which is never executed"
            )
    method = str(stored.get("method", SETTINGS["method"].default))
    own = {name for name in stored if name.startswith(f"{method}_")}
    if stored.get("method_hash") is None and method in METHODS.declarations:
        own &= {declared.name for declared in METHODS.declarations[method].settings}
    known = {name: value for name, value in stored.items() if name in {*SETTINGS, *HASHES, *own, RECORD}}
    return Config(**known)


def read_json(path: Path, *, setting: str) -> dict[str, Any]:
    """Reads a JSON object that a run wrote."""
    try:
        content = parse_json(read_bounded(path, "text"))
    except OverLimitError as error:
        raise SettingError(setting, path.parent, f"{path.name} there {error}") from None
    except (OSError, ValueError):
        content = None
    if not isinstance(content, dict):
        raise SettingError(setting, path.parent, f"{path.name} there is not readable JSON")
    return content
