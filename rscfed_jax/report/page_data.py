"""What the page's script draws, as JSON: short numbers, and None for what a run did not record."""

from itertools import zip_longest
from typing import Any

from rscfed_jax.report.collect import Run
from rscfed_jax.report.comparison import comparison
from rscfed_jax.report.seeds import CURVES, Line, Moments, Report, has_weights
from rscfed_jax.storage.records import PSEUDO_LABELS

MOST_CLIENTS = 200  # that a histogram shows


def page_data(report: Report) -> dict[str, Any]:
    """The curves of the lines, their pseudo-labels by class, what is inside each run, and what can be compared."""
    return {
        "lines": [_curves(line) for line in report.lines],
        "by_class": _by_class(report),
        "runs": [_inside(run) for run in report.runs],
        "comparison": comparison(report),
    }


def _curves(line: Line) -> dict[str, Any]:
    return {
        "name": line.name,
        "round": [evaluation.round for evaluation in line.evaluations],
        **{name: [_short(evaluation.metrics[name]) for evaluation in line.evaluations] for name in _shown(line)},
        **{name: [evaluation.sent[name] for evaluation in line.evaluations] for name in ("models_up", "bytes_up")},
    }


def _shown(line: Line) -> tuple[str, ...]:
    return (*CURVES, *PSEUDO_LABELS) if line.has_pseudo_labels else CURVES


def _by_class(report: Report) -> dict[str, Any] | None:
    """[lines][classes] pseudo-labels at the last evaluation, of the lines that have them, with their numbers."""
    lines = {number: line for number, line in enumerate(report.lines) if line.has_pseudo_labels}
    classes = max(
        (len(of_class) for line in lines.values() for of_class in line.pseudo_labels_by_class.values()), default=0
    )
    if not classes:
        return None

    def row(values: list[float | None]) -> list[float | None]:
        return [None if value is None else round(value, 4) for value in values] + [None] * (classes - len(values))

    known = [run.partition.class_names for line in lines.values() for run in line.runs if run.partition is not None]
    return {
        "lines": list(lines),
        "class_names": next((names for names in known if len(names) == classes), [str(c) for c in range(classes)]),
        **{name: [row(line.pseudo_labels_by_class[name]) for line in lines.values()] for name in PSEUDO_LABELS},
    }


def _short(moments: Moments | None) -> list[float] | None:
    return None if moments is None else [round(number, 6) for number in moments if number is not None]


def _inside(run: Run) -> dict[str, Any]:
    return {
        "partition": _partition(run),
        "weights": _weights(run),
        "client_accuracy": _client_accuracy(run),
        "confusion": _confusion(run),
    }


def _partition(run: Run) -> dict[str, Any] | None:
    if run.partition is None or not run.partition.labels:
        return None
    return {
        "class_names": run.partition.class_names,
        "class_counts": run.partition.class_counts[:MOST_CLIENTS],
        "labels": run.partition.labels[:MOST_CLIENTS],
        "server": run.partition.server,
    }


def _weights(run: Run) -> dict[str, Any] | None:
    """[clients][evaluations] weights; evaluations without any, as that before the first round, are left out."""
    if not has_weights(run):
        return None
    evaluated = [
        (record["round"], {int(client): weight for client, weight in record["client_weights"].items()})
        for record in run.records
        if record.get("client_weights")
    ]
    everyone = range(len(run.partition.labels[:MOST_CLIENTS])) if run.partition else ()
    clients = sorted(set(everyone).union(*(weights for _, weights in evaluated)))

    def short(weight: float | None) -> float | None:
        return None if weight is None else float(f"{weight:.4g}")

    return {
        "clients": clients,
        "server": run.partition.server if run.partition else None,
        "rounds": [round_ for round_, _ in evaluated],
        "rows": [[short(weights.get(client)) for _, weights in evaluated] for client in clients],
    }


def _client_accuracy(run: Run) -> dict[str, Any] | None:
    """[clients][evaluations] accuracies on each client's own class mixture."""
    evaluated = [(r["round"], r["client_accuracy"][:MOST_CLIENTS]) for r in run.records if r.get("client_accuracy")]
    if not evaluated:
        return None
    by_client = zip_longest(*(accuracies for _, accuracies in evaluated))
    rows = [[None if value is None else round(value, 4) for value in row] for row in by_client]
    return {"clients": list(range(len(rows))), "rounds": [round_ for round_, _ in evaluated], "rows": rows}


def _confusion(run: Run) -> dict[str, Any] | None:
    if run.confusion is None:
        return None
    return {"matrix": run.confusion, "names": run.class_names}
