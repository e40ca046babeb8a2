"""Signs of life of the processes of a run, by way of the coordinator: none waits for another that has ended.

The first process hears of all others, and they hear of the first, which ends for all.
"""

import itertools
import os
import sys
import threading
from typing import Any

PATIENCE = 60  # seconds after which a silent process is taken for dead
BEAT = 2.0  # seconds between two signs of life
LAST_BEAT = 0.1  # and between the last ones, when a process waits for the others to end with it
ONE_ENDED = 4  # exit code of a process whose companions have ended
DONE, HEARD = "done", "heard"  # last signs: of the first process, and of another that has seen it


class Signs:
    """How long each of the other processes has given no sign of life, in seconds in which this one was awake."""

    def __init__(self, number: int, process: int):
        self.last: dict[int, str] = {}
        self._silent = {other: 0.0 for other in range(number) if other != process and 0 in (other, process)}

    def others(self) -> list[int]:
        """The processes that this one hears of."""
        return list(self._silent)

    def note(self, other: int, sign: str) -> None:
        """Takes in what another process said last."""
        if self.last.get(other) != sign:
            self.last[other], self._silent[other] = sign, 0.0

    def pass_time(self, seconds: float) -> int | None:
        """Lets time pass, and names a process that has been silent for too long."""
        for other in self._silent:
            self._silent[other] += seconds
        return next((other for other, silent in self._silent.items() if silent > PATIENCE), None)


class Watch:
    """Ends this process in a line when another has given no sign of life for too long, as behind a broken link.

    JAX would notice too, but abort the process. Its calls have no time limit, so one thread makes them and another
    counts the seconds. Both wait for events, whose clock nobody can set.
    """

    def __init__(self, client: Any, *, number: int, process: int):
        self._beat, self._ask = client.key_value_set, client.key_value_try_get
        self._process, self._signs = process, Signs(number, process)
        self._done, self._over = threading.Event(), threading.Event()
        for work in (self._exchange, self._judge):
            threading.Thread(target=work, daemon=True).start()

    def end(self) -> None:
        """Waits until the first process has done everything, and all others know it.

        The first one, with nothing left to do, waits for `PATIENCE` seconds at most, the others while it gives signs.
        """
        self._done.set()
        self._over.wait(PATIENCE if self._process == 0 else None)
        self._over.set()

    def _exchange(self) -> None:
        counts = itertools.count()
        while not self._over.is_set():
            done = self._done.is_set()
            try:
                self._listen()
                self._say(DONE if done and self._process == 0 else str(next(counts)))
                if done and self._all_know():
                    self._over.set()
            except Exception:  # the coordinator is away
                pass
            if done:
                self._over.wait(LAST_BEAT)
            else:
                self._done.wait(BEAT)

    def _listen(self) -> None:
        for other in self._signs.others():
            try:
                sign = self._ask(_key(other))
            except Exception:  # it has not begun
                continue
            self._signs.note(other, sign)

    def _say(self, sign: str) -> None:
        self._beat(_key(self._process), sign, allow_overwrite=True)

    def _all_know(self) -> bool:
        """Whether the first process is done and, as far as this one has to care, the others know it."""
        if self._process == 0:
            return all(self._signs.last.get(other) == HEARD for other in self._signs.others())
        if self._signs.last.get(0) != DONE:
            return False
        self._say(HEARD)
        return True

    def _judge(self) -> None:
        while (silent := self._signs.pass_time(BEAT)) is None:
            self._over.wait(BEAT)
            if self._over.is_set() or (self._process == 0 and self._done.is_set()):
                return
        if self._done.is_set():  # nothing is left to do here, and the first's own exit code says how it ended
            self._over.set()
            return
        reason = f"process {silent} has given no sign of life for {PATIENCE} s"
        line = f"rscfed-jax: error: another process of this run has ended: {reason}\n"
        try:
            sys.stderr.write(line)
            sys.stderr.flush()
        except (OSError, ValueError):  # nobody reads it
            pass
        os._exit(ONE_ENDED)


def _key(process: int) -> str:
    return f"rscfed_jax/alive/{process}"
