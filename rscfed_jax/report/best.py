"""The best lines of a report by each metric."""

from collections.abc import Callable, Iterable

from rscfed_jax.config.registry import lower_is_better
from rscfed_jax.report.seeds import Line, Moments, Report

TEST_SET = ("dataset", "split", "validation")  # the settings that decide which samples metrics are of


def best_lines(
    report: Report, part: Callable[[Line], dict[str, Moments | None]], names: Iterable[str]
) -> dict[str, set[int]]:
    """The numbers of the lines that are best by each metric of a part, final or best; several if they look equal.

    Nobody is best without others to compare with, or among lines with different test sets. Unfinished lines count only
    where no line is finished.
    """
    if len(report.lines) < 2 or set(TEST_SET) & set(report.differing):
        return {name: set() for name in names}
    finished = [number for number, line in enumerate(report.lines) if line.finished]
    compared = finished or range(len(report.lines))
    best = {}
    for name in names:
        # As the page shows them: a reader who sees two equal numbers expects both to be marked.
        values = {n: round(100 * mean[0], 2) for n in compared if (mean := part(report.lines[n])[name]) is not None}
        winner = (min if name in lower_is_better() else max)(values.values(), default=None)
        best[name] = {number for number, value in values.items() if value == winner}
    return best
