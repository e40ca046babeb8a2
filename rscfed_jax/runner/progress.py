"""The progress of a run on the console: a bar on a terminal, occasional lines elsewhere."""

import datetime
import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 10.0


class Audience(Console):
    """A console whose output may stop being read, as in `train 2>&1 | head`; the run continues."""

    def on_broken_pipe(self) -> None:
        """Stops printing; rich itself would end the process."""
        self.quiet = True


class RunProgress:
    """Shows rounds, accuracy, seconds per round and the time left."""

    def __init__(self, rounds: int, *, visible: bool = True):
        self.rounds, self.visible = rounds, visible
        self.console = Audience(stderr=True)
        self.bar: Progress | None = None
        self.before = 0  # rounds of the parts that are done
        self.last_line = time.perf_counter()

    def __enter__(self) -> Self:
        if self.visible and self.console.is_terminal:
            self.bar = Progress(
                TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
                BarColumn(),
                TextColumn("{task.description}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=self.console,
            )
            self.bar.start()
            self.task = self.bar.add_task("", total=self.rounds)
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def begin_part(self, before: int, text: str) -> None:
        """Begins a part of the work, whose own rounds count from 1, after `before` rounds of other parts."""
        self.before = before
        self.say(text)

    def begin_at(self, round_: int) -> None:
        """Shows that `round_` rounds of this part were done earlier."""
        if self.bar is not None:
            self.bar.update(self.task, completed=self.before + round_)

    def say(self, text: str, *, always: bool = False) -> None:
        """Prints one line about something other than the rounds; with `always`, even if progress is hidden."""
        if self.visible or always:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def update(self, round_: int, *, accuracy: float, seconds_per_round: float) -> None:
        """Shows that `round_` rounds are done."""
        if not self.visible:
            return
        round_ += self.before
        text = f"accuracy {accuracy:.1%}  {seconds_per_round:.2f} s/round"
        now = time.perf_counter()
        if self.bar is not None:
            self.bar.update(self.task, completed=round_, description=text)
        elif now - self.last_line > SECONDS_BETWEEN_LINES or round_ == self.rounds:
            self.last_line = now
            left = datetime.timedelta(seconds=round(seconds_per_round * (self.rounds - round_)))
            self.console.print(f"round {round_}/{self.rounds}  {text}  {left} left", highlight=False)
