"""The report on a terminal: a line for each method, with its curve in a few letters."""

import math
import sys
from typing import TextIO

from rscfed_jax.report.seeds import Line, Report
from rscfed_jax.report.tables import as_console, percent

BARS = "▁▂▃▄▅▆▇█"
PLAIN_BARS = "_.-=+*#@"  # for a terminal that knows ASCII alone
WIDTH = 24
SHOWN = ("accuracy", "auc")


def report_as_console(report: Report, *, letters: str = BARS) -> str:
    """Final accuracy and AUC of each line, and how its accuracy came about; all curves have one scale."""
    curves = [curve_of(line) for line in report.lines]
    known = [value for curve in curves for value in curve]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    head = ["in percent", "seeds", "accuracy", "AUC", f"accuracy by round, {100 * low:.0f} to {100 * high:.0f}"]
    lines = [
        [
            line.name,
            str(len(line.runs)),
            *(percent(line.final[name], plus_minus="+-", missing="-") for name in SHOWN),
            sparkline(curve, low=low, high=high, letters=letters).ljust(len(head[-1])),
        ]
        for line, curve in zip(report.lines, curves, strict=True)
    ]
    return "\n".join(text.rstrip() for text in as_console([head, *lines]).splitlines())


def curve_of(line: Line) -> list[float]:
    """At most WIDTH accuracies, evenly over the evaluated rounds, the last among them."""
    found = [moments[0] for each in line.evaluations if (moments := each.metrics["accuracy"]) is not None]
    count = min(len(found), WIDTH)
    return [found[math.ceil((number + 1) * len(found) / count) - 1] for number in range(count)]


def sparkline(values: list[float], *, low: float, high: float, letters: str = BARS) -> str:
    """A letter for each value, higher for a larger one."""
    spread = high - low or 1.0
    return "".join(letters[min(int((value - low) / spread * len(letters)), len(letters) - 1)] for value in values)


def letters_for(stream: TextIO = sys.stdout) -> str:
    """The letters that a stream can show."""
    try:
        BARS.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return PLAIN_BARS
    return BARS
