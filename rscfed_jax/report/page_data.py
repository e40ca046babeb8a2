"""What the page's script draws, as JSON: short numbers, and None for what a run does not tell."""

from typing import Any

from rscfed_jax.report.collect import Run
from rscfed_jax.report.groups import Group, Report, has_weights

MOST_CLIENTS = 200  # that a histogram shows


def page_data(report: Report) -> dict[str, Any]:
    """The lines of the groups, and what is inside each run."""
    return {
        "groups": [_lines(group) for group in report.groups],
        "runs": [_inside(run) for run in report.runs],
    }


def _lines(group: Group) -> dict[str, Any]:
    points = group.points
    return {
        "name": group.name,
        "round": [point.round for point in points],
        **{name: [_short(point.metrics[name]) for point in points] for name in ("accuracy", "auc")},
        **{name: [point.sent[name] for point in points] for name in ("bytes_up", "models_up")},
    }


def _short(moments: tuple[float | None, ...] | None) -> list[float] | None:
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
    }


def _weights(run: Run) -> dict[str, Any] | None:
    """[clients][evaluations] weights; evaluations without any, as that before the first round, are left out."""
    if not has_weights(run):
        return None
    records = [record for record in run.records if record["client_weights"]]
    drawn = {client for record in records for client in record["client_weights"]}
    everyone = range(len(run.partition.labels[:MOST_CLIENTS])) if run.partition else ()
    clients = sorted(drawn.union(everyone))

    def weight(record: dict[str, Any], client: int) -> float | None:
        value = record["client_weights"].get(client)
        return None if value is None else float(f"{value:.4g}")

    return {
        "clients": clients,
        "rounds": [record["round"] for record in records],
        "rows": [[weight(record, client) for record in records] for client in clients],
    }


def _confusion(run: Run) -> dict[str, Any] | None:
    if run.confusion is None:
        return None
    names = run.partition.class_names if run.partition else []
    if len(names) != len(run.confusion):
        names = [str(label) for label in range(len(run.confusion))]
    return {"matrix": run.confusion, "names": names}
