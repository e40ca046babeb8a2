"""What the page needs to compare any two lines or runs: their numbers seed by seed, and their recall of each class."""

from itertools import zip_longest
from typing import Any

from rscfed_jax.config.registry import lower_is_better, metrics
from rscfed_jax.report.collect import Run
from rscfed_jax.report.seeds import Line, Report, moments
from rscfed_jax.report.tables import as_text, unit_of

SENT = {"bytes_up": "Sent up", "bytes_down": "Sent down"}


def comparison(report: Report) -> dict[str, Any] | None:
    """The measures, and what has them: lines, if there are several, then the single runs of lines with several seeds.

    None if there is nothing to compare.
    """
    lines = report.lines if len(report.lines) > 1 else []
    singles = [(line, run) for line in report.lines if len(line.runs) > 1 for run in line.runs]
    if not lines and not singles:
        return None
    most = most_sent(report)
    unit = unit_of(most)
    sent = SENT if most else {}
    measures = [_measure(title, 100, 2, lower=name in lower_is_better()) for name, title in metrics().items()]
    measures += [_measure(f"{title}, {unit.name}", 1 / unit.size, unit.digits, lower=True) for title in sent.values()]
    items = [_item(line.name, line, line.runs, report.differing, list(sent)) for line in lines]
    items += [
        _item(f"{line.name}, seed {run.seed}", line, [run], report.differing, list(sent)) for line, run in singles
    ]
    return {"measures": measures, "lines": len(lines), "items": items}


def _measure(title: str, scale: float, digits: int, *, lower: bool) -> dict[str, Any]:
    return {"title": title, "scale": scale, "digits": digits, "lower": lower}


def most_sent(report: Report) -> float:
    """The largest number of bytes that any line sent in one direction; zero if none was recorded."""
    return max((line.sent[name] or 0 for line in report.lines for name in SENT), default=0)


def _item(name: str, line: Line, runs: list[Run], differing: list[str], sent: list[str]) -> dict[str, Any]:
    settings = {setting: as_text(line.settings.get(setting)) for setting in differing}
    return {
        "name": name,
        "seeds": [run.seed for run in runs],
        "values": [  # [measures][seeds]
            *([_short(run.final[metric]) for run in runs] for metric in metrics()),
            *([run.records[-1].get(way) for run in runs] for way in sent),
        ],
        "dataset": as_text(line.settings.get("dataset")),
        "class_names": max((run.class_names for run in runs), key=len),
        "recall": _recall([run for run in runs if run.confusion is not None]),
        "settings": {"seed": ", ".join(str(run.seed) for run in runs)} | settings,
    }


def _recall(runs: list[Run]) -> list[float | None]:
    """[classes] means over the runs of the share of a class that was recognised; None for one without test samples."""
    of_runs = [
        [row[label] / sum(row) if sum(row) else None for label, row in enumerate(run.confusion or [])] for run in runs
    ]
    means = [moments(of_class) for of_class in zip_longest(*of_runs)]
    return [_short(mean and mean[0]) for mean in means]


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
