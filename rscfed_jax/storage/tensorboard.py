"""Event files for TensorBoard, to look at a run while it goes on.

They repeat metrics.jsonl and are never read back. Every file tells the run from its first round and lets TensorBoard
drop what earlier files told, so that a resumed run has no point twice and none that was lost with the old process.
"""

import contextlib
import importlib.util
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from rscfed_jax.config import SettingError
from rscfed_jax.config.registry import metrics
from rscfed_jax.storage.records import BY_CLASS, CLIENT_ACCURACY
from rscfed_jax.storage.run_directory import RunDirectory

GROUPS: dict[str, tuple[str, ...]] = {  # besides "test", which holds the metrics
    "loss": ("labeled_loss", "consistency_loss"),
    "pseudo-labels": tuple(BY_CLASS),
    "clients": (*CLIENT_ACCURACY, "broken_clients", "dropped_clients", "attacker_weight"),
    "communication": ("models_down", "models_up", "bytes_down", "bytes_up"),
    "time": ("seconds",),
}


class EventLog:
    """Writes the records of a run into DIR/tensorboard; `add` is what `train` calls `on_record`."""

    def __init__(self, directory: RunDirectory):
        self.directory = directory
        self.path = directory.path / "tensorboard"
        self._file: Any = None
        if importlib.util.find_spec("tensorboardX") is None:
            raise SettingError("tensorboard", self.path, "needs the package tensorboardX: pip install '.[tensorboard]'")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None and self._file is None:
            self._write(self.directory.read_metrics())  # the run was finished already
        if self._file is not None:
            with contextlib.suppress(OSError):  # every record is flushed; a full disk has been told already
                self._file.close()

    def add(self, record: dict[str, Any]) -> None:
        """Tells an evaluated round; the first call also tells those before it."""
        before = self.directory.read_metrics() if self._file is None else []
        self._write([*(told for told in before if told["round"] < record["round"]), record])

    def _write(self, records: Iterable[dict[str, Any]]) -> None:
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.proto.summary_pb2 import Summary

        try:
            if self._file is None:
                self._file = self._open()
                start = SessionLog(status=SessionLog.START)
                self._file.write_event(Event(wall_time=time.time(), step=0, session_log=start))
            for record in records:
                values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(record).items()]
                event = Event(wall_time=time.time(), step=record["round"], summary=Summary(value=values))
                self._file.write_event(event)
            self._file.flush()
        except OSError as error:
            raise SettingError("tensorboard", self.path, f"cannot be written: {error.strerror}") from None

    def _open(self) -> Any:
        # Not the package's SummaryWriter: its thread dies silently on a full disk, and then its queue blocks the run.
        from tensorboardX.event_file_writer import EventsWriter

        self.path.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names, and seconds alone would give two files one name.
        return EventsWriter(str(self.path / "events"), f".{time.time_ns()}")


def scalars(record: dict[str, Any]) -> dict[str, float]:
    """The numbers of a record under the names that TensorBoard groups them by; absent ones and None are left out."""
    groups = {"test": tuple(metrics())} | GROUPS
    named = [(f"{group}/{name}", record.get(name)) for group, names in groups.items() for name in names]
    named += [(f"weight/client {client}", value) for client, value in (record.get("client_weights") or {}).items()]
    lists = {"accuracy/client": "client_accuracy"} | {f"{name}/class": listed for name, listed in BY_CLASS.items()}
    for group, listed in lists.items():
        named += [(f"{group} {number}", value) for number, value in enumerate(record.get(listed) or [])]
    return {name: float(value) for name, value in named if isinstance(value, int | float)}
