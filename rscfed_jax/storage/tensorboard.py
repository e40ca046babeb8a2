"""Event files for TensorBoard.

Every file starts at the first round and makes TensorBoard drop the points of earlier files, so that a resumed run has
neither duplicate points nor points of a lost process.
"""

import contextlib
import time
from pathlib import Path
from typing import Any

from rscfed_jax.storage.run_log import RunLog


class EventLog(RunLog):
    """Writes event files into DIR/tensorboard."""

    name, package = "tensorboard", "tensorboardX"

    @property
    def path(self) -> Path:
        """Where the files are."""
        return self.directory.path / "tensorboard"

    def reach(self) -> None:
        """Refuses a file in the place of the directory; whether the disk can be written was checked with the run's."""
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(f"{self.path} is not a directory; move it away")

    def open(self) -> int:
        """A new file, which lacks every round."""
        # Not the package's SummaryWriter: its thread dies silently on a full disk, and then its queue blocks the run.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        self.path.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names, and seconds alone would give two files one name.
        self._file: Any = EventsWriter(str(self.path / "events"), f".{time.time_ns()}")
        start = SessionLog(status=SessionLog.START)
        self._file.write_event(Event(wall_time=time.time(), step=0, session_log=start))
        return 0

    def write(self, round_: int, values: dict[str, float]) -> None:
        """One event with all numbers."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        try:
            self._file.write_event(Event(wall_time=time.time(), step=round_, summary=summary))
            self._file.flush()
        except Exception:
            self.close(finished=False)
            raise

    def close(self, *, finished: bool) -> None:
        """Every event is flushed already."""
        with contextlib.suppress(OSError):
            self._file.close()
