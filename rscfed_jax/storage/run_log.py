"""What the logs for TensorBoard, Weights & Biases and MLflow have in common.

A log repeats metrics.jsonl and is never read back. It is refused before the run begins if it cannot be used. If it
fails later, it is given up with a warning and the run continues: metrics.jsonl has every round, and a resumed run, even
a finished one, sends the log its missing rounds.
"""

import abc
import contextlib
import importlib
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, ClassVar, Self

from rscfed_jax.config import SettingError
from rscfed_jax.config.files import write_json
from rscfed_jax.config.registry import metrics
from rscfed_jax.storage.records import BY_CLASS, CLIENT_ACCURACY, Record
from rscfed_jax.storage.run_directory import RunDirectory, read_json

GROUPS: dict[str, tuple[str, ...]] = {  # besides "test", which holds the metrics
    "loss": ("labeled_loss", "consistency_loss"),
    "pseudo-labels": tuple(BY_CLASS),
    "clients": (*CLIENT_ACCURACY, "broken_clients", "dropped_clients", "attacker_weight"),
    "communication": ("models_down", "models_up", "bytes_down", "bytes_up"),
    "time": ("seconds",),
}
PROJECT = "rscfed-jax"  # under which services that know projects list the runs, unless the user names another
LONGEST_REASON = 300


class RunLog(abc.ABC):
    """Repeats the records of a run elsewhere while the `with` block runs; `add` is what `train` calls `on_record`."""

    name: ClassVar[str]  # of its flag
    package: ClassVar[str]

    def __init__(self, directory: RunDirectory, *, resume: bool = False, warn: Callable[[str], None] = print):
        self.directory, self.resume, self.warn = directory, resume, warn
        self._first: int | None = None  # the first round that is missing there; None: not opened yet
        self._failed = False
        self._check_package()

    @abc.abstractmethod
    def reach(self) -> None:
        """Raises an error if the log cannot be used; writes nothing into the run directory."""

    @abc.abstractmethod
    def open(self) -> int:
        """Opens the log, whose run directory is there by now, and returns the first round that it lacks."""

    @abc.abstractmethod
    def write(self, round_: int, values: dict[str, float]) -> None:
        """Writes the numbers of an evaluated round so that they can be seen at once."""

    @abc.abstractmethod
    def close(self, *, finished: bool) -> None:
        """Closes the log of a run that was finished, stopped or lost."""

    def check(self) -> None:
        """Refuses, before anything runs, a log that cannot be used."""
        try:
            self.reach()
        except Exception as error:  # of any kind: it comes from a foreign package
            raise SettingError(self.name, self.directory.path, _reason(error)) from None

    def add(self, record: Record) -> None:
        """Logs an evaluated round; the first call also logs the rounds before it."""
        self._tell(until=record)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None and self._first is None:
            self._tell()  # the run was finished already
        if self._first is not None and not self._failed:
            with self._or_given_up():
                self.close(finished=kind is None)

    def remembered(self) -> dict[str, Any]:
        """What an earlier process of a resumed run noted with `remember`; empty if there was none."""
        path = self.directory.path / f"{self.name}.json"
        return read_json(path, setting=self.name) if self.resume and path.exists() else {}

    def remember(self, content: dict[str, Any]) -> None:
        """Notes in the run directory how a later process finds this log again."""
        write_json(self.directory.path / f"{self.name}.json", content)

    def settings(self) -> dict[str, Any]:
        """The settings of the run."""
        return read_json(self.directory.config, setting="out")

    def _tell(self, until: Record | None = None) -> None:
        if self._failed:
            return
        with self._or_given_up():
            records = [] if until is None else [until]
            if self._first is None:
                before = self.directory.read_metrics()
                records = [told for told in before if until is None or told["round"] < until["round"]] + records
                self._first = self.open()
            for record in records:
                if record["round"] >= self._first:
                    self.write(record["round"], scalars(record))

    @contextlib.contextmanager
    def _or_given_up(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of any kind: it comes from a foreign package, and the run is worth more
            self._failed = True
            what = f"--{self.name}: {_reason(error)}"
            self.warn(f"{what}; the run continues without it; --resume sends the missing rounds")

    def _check_package(self) -> None:
        missing = f"needs the package {self.package}: pip install {self.package}"
        try:
            module = importlib.import_module(self.package)
        except Exception as error:
            absent = isinstance(error, ModuleNotFoundError) and error.name == self.package
            reason = missing if absent else f"the package {self.package} cannot be imported: {_reason(error)}"
            raise SettingError(self.name, self.directory.path, reason) from None
        # A directory of that name, which these packages make themselves, can be imported as well.
        if getattr(module, "__file__", None) is None:
            raise SettingError(self.name, self.directory.path, missing)


def _reason(error: Exception) -> str:
    """An error of any kind in one line that is not too long."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]}..."


def scalars(record: Record) -> dict[str, float]:
    """The numbers of a record, named by group; absent ones and None are left out."""
    groups = {"test": tuple(metrics())} | GROUPS
    named = [(f"{group}/{name}", record.get(name)) for group, names in groups.items() for name in names]
    named += [(f"weight/client {client}", value) for client, value in (record.get("client_weights") or {}).items()]
    lists = {"accuracy/client": "client_accuracy"} | {f"{name}/class": listed for name, listed in BY_CLASS.items()}
    for group, listed in lists.items():
        named += [(f"{group} {number}", value) for number, value in enumerate(record.get(listed) or [])]
    return {name: float(value) for name, value in named if isinstance(value, int | float)}
