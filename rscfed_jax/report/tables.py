"""The report as Markdown and as CSV."""

from collections.abc import Iterable, Sequence
from typing import Any

from rscfed_jax.report import text
from rscfed_jax.report.collect import METRICS
from rscfed_jax.report.groups import Moments, Report

TITLES = {"accuracy": "Accuracy", "auc": "AUC", "precision": "Precision", "recall": "Recall"}
FINAL = [f"Final {name if name != 'auc' else 'AUC'}" for name in METRICS]
BEST = [*(f"Best {name if name != 'auc' else 'AUC'}" for name in METRICS), "Best round"]
EXPLAINED = (
    "Metrics on the test set in percent. Final is the mean of the last five evaluations; best is the round with the "
    "highest accuracy on the test set, an oracle. Mean ± standard deviation over seeds, where there is more than one."
)


def percent(moments: Moments | None) -> str:
    """A mean and its standard deviation, in percent."""
    if moments is None:
        return "–"
    mean, deviation = moments
    return f"{100 * mean:.2f}" + ("" if deviation is None else f" ± {100 * deviation:.2f}")


def setting(value: Any) -> str:
    """The value of a setting as a reader writes it."""
    if value is None:
        return "–"
    return f"{value:g}" if isinstance(value, float) else str(value)


def rounds(moments: Moments | None) -> str:
    """A round, or the mean of several seeds' rounds."""
    return "–" if moments is None else f"{moments[0]:.0f}" if moments[1] is None else f"{moments[0]:.1f}"


def title(report: Report) -> str:
    """What the report is of, in a line."""
    count = len(report.runs)
    datasets = ", ".join(dict.fromkeys(setting(run.settings.get("dataset")) for run in report.runs))
    return f"{count} run{'s' if count > 1 else ''} on {datasets}"


def as_markdown(report: Report) -> str:
    """Tables for a note or an issue."""
    lines = [
        [
            *(group.name, str(len(group.runs))),
            *(percent(part[name]) for part in (group.final, group.best) for name in METRICS),
            rounds(group.best["round"]),
        ]
        for group in report.groups
    ]
    parts = [f"# {title(report)}", *[f"- {_in_cell(note)}" for note in report.notes]]
    parts += ["", "## Metrics", "", EXPLAINED, "", _markdown(["Run", "Seeds", *FINAL, *BEST], lines, left=1)]
    if report.differing:
        lines = [
            [group.name, *(setting(group.settings.get(name)) for name in report.differing)] for group in report.groups
        ]
        parts += ["", "## Settings that differ", "", _markdown(["Run", *report.differing], lines, left=99)]
    common = [[name, setting(value)] for name, value in report.common.items()]
    parts += ["", "## Settings in common", "", _markdown(["Setting", "Value"], common, left=2)]
    return "\n".join(parts) + "\n"


def _markdown(columns: Sequence[str], lines: Iterable[Sequence[str]], *, left: int) -> str:
    """A table whose columns, but the first `left`, are aligned to the right."""
    ruler = ["---" if number < left else "---:" for number in range(len(columns))]
    return "\n".join("| " + " | ".join(map(_in_cell, line)) + " |" for line in [columns, ruler, *lines])


def _in_cell(content: str) -> str:
    """Text that neither ends its cell nor becomes markup."""
    return " ".join(content.split()).replace("|", "\\|").replace("<", "&lt;")


def as_csv(report: Report) -> str:
    """A line for each group with full numbers, metrics as fractions; a deviation of one seed is empty."""
    rows = []
    for group in report.groups:
        row = {"run": group.name, "seeds": len(group.runs), "finished": str(group.finished).lower()}
        row |= {name: group.settings.get(name) for name in report.differing}
        for part, metrics in (("final", group.final), ("best", group.best)):
            for name in METRICS:
                row[f"{part}_{name}"], row[f"{part}_{name}_std"] = metrics[name] or (None, None)
        row["best_round"] = (group.best["round"] or (None,))[0]
        sent = group.points[-1].sent if group.points else {}
        rows.append(row | {name: sent.get(name) for name in ("models_up", "bytes_up")})
    return text.as_csv(rows)
