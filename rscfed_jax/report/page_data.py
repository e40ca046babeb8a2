"""What the page's script draws, as JSON: short numbers, and None for what a run did not record."""

from typing import Any

from rscfed_jax.report.collect import Run
from rscfed_jax.report.seeds import CURVES, SENT, Line, Moments, Report, has_weights

MOST_CLIENTS = 200  # that a histogram shows


def page_data(report: Report) -> dict[str, Any]:
    """The curves of the lines, and what is inside each run."""
    return {
        "lines": [_curves(line) for line in report.lines],
        "runs": [_inside(run) for run in report.runs],
    }


def _curves(line: Line) -> dict[str, Any]:
    return {
        "name": line.name,
        "round": [evaluation.round for evaluation in line.evaluations],
        **{name: [_short(evaluation.metrics[name]) for evaluation in line.evaluations] for name in CURVES},
        **{name: [evaluation.sent[name] for evaluation in line.evaluations] for name in SENT},
    }


def _short(moments: Moments | None) -> list[float] | None:
    return None if moments is None else [round(number, 6) for number in moments if number is not None]


def _inside(run: Run) -> dict[str, Any]:
    return {"partition": _partition(run), "weights": _weights(run), "confusion": _confusion(run)}


def _partition(run: Run) -> dict[str, Any] | None:
    if run.partition is None:
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


def _confusion(run: Run) -> dict[str, Any] | None:
    if run.confusion is None:
        return None
    names = run.partition.class_names if run.partition else []
    if len(names) != len(run.confusion):
        names = [str(label) for label in range(len(run.confusion))]
    return {"matrix": run.confusion, "names": names}
