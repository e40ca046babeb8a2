"""SIGINT and SIGTERM: the first signal lets the run stop at the next safe point, the second ends it immediately."""

import contextlib
import os
import signal
import socket
import sys
import threading
from types import FrameType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Notes a signal while the `with` block runs.

    Python runs its handlers between two steps of the main thread, which may sit in a compiled program for minutes. A
    thread of its own therefore reads the signals as they come.
    """

    def __init__(self) -> None:
        self.number: int | None = None  # of the first signal

    def received(self) -> bool:
        """Whether the run is asked to stop."""
        return self.number is not None

    def __enter__(self) -> Self:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._handlers = {number: signal.signal(number, _leave_to_the_thread) for number in SIGNALS}
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._writer.close()

    def _watch(self) -> None:
        with self._reader:
            while received := self._reader.recv(1):
                if received[0] not in SIGNALS:
                    continue
                if self.number is not None:
                    os._exit(128 + received[0])
                self.number = received[0]
                with contextlib.suppress(OSError):  # nobody may read it any more, but the next signal must count
                    print(
                        "finishing the current rounds, then stopping; signal again to stop immediately",
                        file=sys.stderr,
                        flush=True,
                    )


def _leave_to_the_thread(number: int, frame: FrameType | None) -> None:
    """A handler must be there, or the signal would end the process."""
