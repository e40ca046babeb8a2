"""The report as Markdown and as CSV, and the words that it shares with the page."""

from rscfed_jax.config.registry import metrics
from rscfed_jax.report.seeds import CURVES, Moments, Report, in_a_sentence
from rscfed_jax.report.tables import MISSING, as_csv, as_markdown, as_text, in_markdown, percent
from rscfed_jax.storage.records import PSEUDO_LABELS

EXPLAINED = (
    "Metrics on the test set, in percent. Final is the mean of the last five evaluations. Best is the round with the "
    "highest accuracy on the test set: an oracle. With several seeds: mean ± standard deviation."
)
JUDGED = (
    "Labels that a method gave to unlabeled samples: how many of the samples it kept for training, and how many of the "
    "kept ones have their true label, which training never sees. In percent."
)


def final_columns() -> list[str]:
    """The names of the columns of final metrics, where those of the best round stand beside them."""
    return [f"Final {in_a_sentence(title)}" for title in metrics().values()]


def best_columns() -> list[str]:
    """The same of the best round: the curves' metrics only, or tables would be too wide to read."""
    return [*(f"Best {in_a_sentence(metrics()[name])}" for name in CURVES), "Best round"]


def round_as_text(moments: Moments | None) -> str:
    """A round, or the mean of several seeds' rounds."""
    return MISSING if moments is None else f"{moments[0]:.0f}" if moments[1] is None else f"{moments[0]:.1f}"


def title_of(report: Report) -> str:
    """What the report is of, in a line."""
    count = len(report.runs)
    datasets = ", ".join(dict.fromkeys(as_text(run.settings.get("dataset")) for run in report.runs))
    return f"{count} run{'s' if count > 1 else ''} on {datasets}"


def report_as_markdown(report: Report) -> str:
    """Tables for a note or an issue."""
    lines = [
        [
            *(line.name, str(len(line.runs))),
            *(percent(line.final[name]) for name in metrics()),
            *(percent(line.best[name]) for name in CURVES),
            round_as_text(line.best["round"]),
        ]
        for line in report.lines
    ]
    parts = [f"# {title_of(report)}\n", *(f"- {in_markdown(note)}\n" for note in report.notes)]
    parts += [
        f"\n## Metrics\n\n{EXPLAINED}\n\n",
        as_markdown([["Run", "Seeds", *final_columns(), *best_columns()], *lines]),
    ]
    judged = [
        [line.name, str(len(line.runs)), *map(percent, line.pseudo_labels.values())]
        for line in report.lines
        if line.has_pseudo_labels
    ]
    if judged:
        columns = ["Run", "Seeds", *PSEUDO_LABELS.values()]
        parts += [f"\n## Pseudo-labels\n\n{JUDGED}\n\n", as_markdown([columns, *judged])]
    if report.differing:
        values = [
            [line.name, *(as_text(line.settings.get(name)) for name in report.differing)] for line in report.lines
        ]
        columns = ["Run", *report.differing]
        parts += ["\n## Settings that differ\n\n", as_markdown([columns, *values], left=len(columns))]
    common = [[name, as_text(value)] for name, value in report.common.items()]
    parts += ["\n## Settings in common\n\n", as_markdown([["Setting", "Value"], *common], left=2)]
    return "".join(parts)


def report_as_csv(report: Report) -> str:
    """A row for each line with full numbers, metrics as fractions; a deviation of one seed is empty."""
    rows = []
    has_pseudo_labels = any(line.has_pseudo_labels for line in report.lines)
    for line in report.lines:
        row = {"run": line.name, "seeds": len(line.runs), "finished": str(line.finished).lower()}
        row |= {name: line.settings.get(name) for name in report.differing}
        for part, of_part in (("final", line.final), ("best", line.best)):
            for name in metrics():
                row[f"{part}_{name}"], row[f"{part}_{name}_std"] = of_part[name] or (None, None)
        for name in PSEUDO_LABELS if has_pseudo_labels else ():
            row[name], row[f"{name}_std"] = line.pseudo_labels[name] or (None, None)
        row["best_round"] = (line.best["round"] or (None,))[0]
        rows.append(row | line.sent)
    return as_csv(rows)
