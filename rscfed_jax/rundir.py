"""The run directory and its files. No JAX is imported here, so that a directory is checked at once."""

import contextlib
import dataclasses
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rscfed_jax.config import Config, SettingError
from rscfed_jax.modelfile import ENDINGS, is_model_file, read_tensors

METRICS = ("accuracy", "auc", "precision", "recall")  # as the files of a run name them
# A resumed run may differ in these; rounds only upward.
MAY_CHANGE = ("rounds", "checkpoint_every", "chunk", "devices", "data_dir", "download")


class RunDirectory:
    """Where a run leaves what it found. Nothing is written before `open`."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.partition = self.path / "partition.json"
        self.metrics = self.path / "metrics.jsonl"
        self.summary = self.path / "summary.json"
        self.curve = self.path / "curve.png"
        self.checkpoints = self.path / "checkpoints"
        self.diverged = self.path / "diverged.json"  # of a grid's cell whose model is no longer finite
        self.lock = self.path / ".lock"

    @property
    def saved_rounds(self) -> list[int]:
        """The rounds of which there is a checkpoint, damaged or not."""
        if not self.checkpoints.is_dir():
            return []
        return sorted(int(path.name) for path in self.checkpoints.iterdir() if path.name.isdecimal())

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
                    "out", self.path, "holds a run already; add --resume to continue it, or choose another"
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
        before, now = _stored_config(self.config, setting="out").to_dict(), config.to_dict()
        different = [name for name in now if before[name] != now[name] and name not in MAY_CHANGE]
        if different:
            changes = ", ".join(f"{name} was {before[name]} and is {now[name]}" for name in different)
            raise SettingError("resume", self.path, f"the run there has other settings: {changes}")
        if now["rounds"] < before["rounds"]:
            raise SettingError(
                "rounds", now["rounds"], f"a resumed run must have at least its {before['rounds']} rounds"
            )

    def _check_same_data(self, partition: dict[str, Any]) -> None:
        before = read_json(self.partition, setting="out") if self.partition.exists() else {}
        if different := [name for name in partition if name in before and before[name] != partition[name]]:
            named = ", ".join(different)
            raise SettingError("resume", self.path, f"the run there has other data: {named} of partition.json differ")

    @contextlib.contextmanager
    def open(self, config: Config, partition: dict[str, Any], *, resume: bool) -> Iterator[None]:
        """Makes the directory, writes settings and data, and keeps other runs out while the `with` block runs."""
        with contextlib.ExitStack() as held:
            with self.refusing():
                self.path.mkdir(parents=True, exist_ok=True)
                held.enter_context(self._locked())
                # Another run may have come and gone since the first check.
                self._check(config, resume=resume)
                self._check_same_data(partition)
                write_json(self.config, config.to_dict())
                write_json(self.partition, partition)
            yield

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

    def read_metrics(self) -> list[dict[str, Any]]:
        """The evaluated rounds of a run."""
        records = []
        try:
            lines = self.metrics.read_text().splitlines()
        except (OSError, ValueError):
            raise SettingError("out", self.path, "metrics.jsonl there is not readable") from None
        for number, line in enumerate(lines, 1):
            try:
                records.append(dict(json.loads(line)))
            except (ValueError, TypeError):
                raise SettingError("out", self.metrics, f"line {number} is not a JSON object") from None
        return records

    def read_summary(self) -> dict[str, Any]:
        """What a finished run found."""
        summary = read_json(self.summary, setting="out")
        if not summary.keys() >= {"final", "best", "rounds"}:
            raise SettingError("out", self.path, "summary.json there is not that of a run; without it, it is made anew")
        return summary


def split_checkpoint(path: str | Path) -> tuple[Path, int | None]:
    """The run directory, and the round if the path is that of a checkpoint: RUN/checkpoints/ROUND."""
    place = Path(path).absolute()
    if place.parent.name == "checkpoints" and place.name.isdecimal():
        return place.parent.parent, int(place.name)
    return Path(path), None


def check_stored(path: str | Path, *, setting: str) -> None:
    """Refuses a path under which no run, checkpoint or readable model file lies."""
    if is_model_file(path):
        read_tensors(path, setting=setting)
    else:
        load_config(path, setting=setting)


def load_config(path: str | Path, *, setting: str) -> Config:
    """The config of a finished or stopped run, given its directory or one of its checkpoints."""
    run, round_ = split_checkpoint(path)
    directory = RunDirectory(run)
    try:
        is_run = directory.config.exists() and directory.checkpoints.exists()
        is_run &= round_ is None or (directory.checkpoints / str(round_)).is_dir()
    except OSError:
        is_run = False
    if not is_run:
        reason = "is not a run directory with config.json and checkpoints, nor a checkpoint of one, nor a model file"
        raise SettingError(setting, path, f"{reason} ({', '.join(ENDINGS)})")
    return _stored_config(directory.config, setting=setting)


def _stored_config(path: Path, *, setting: str) -> Config:
    """The config in a file; a setting that the version which wrote it did not have gets its default."""
    known = {field.name for field in dataclasses.fields(Config)}
    return Config(**{key: value for key, value in read_json(path, setting=setting).items() if key in known})


def read_json(path: Path, *, setting: str) -> dict[str, Any]:
    """Reads a JSON object that a run wrote."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        content = None
    if not isinstance(content, dict):
        raise SettingError(setting, path.parent, f"{path.name} there is not readable JSON")
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes a JSON file as a whole, a line for each key: a reader sees the old or the new one, never a part."""
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()]
    write_whole(path, "{\n" + ",\n".join(lines) + "\n}\n")


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file so that a reader sees the old or the new one, never a part."""
    part = path.with_name(path.name + ".part")
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
