"""Summarises the evaluated rounds of a run: final metrics, best round, and accuracy of its pseudo-labels."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rscfed_jax.config.registry import metrics

LAST_EVALUATIONS = 5  # the final metrics are their mean
MOST_LISTED = 200  # larger federations do not record the weights and accuracies of single clients
PSEUDO_LABELS = {"kept_share": "Share of samples kept", "kept_accuracy": "Accuracy of kept labels"}
BY_CLASS = {name: f"{name}_by_class" for name in PSEUDO_LABELS}  # lists over the true classes
CLIENT_ACCURACY = ("client_accuracy_mean", "client_accuracy_min")  # "client_accuracy" is the list over clients

Record = dict[str, Any]  # a line of metrics.jsonl


def final_of(records: Sequence[Record]) -> dict[str, float | None]:
    """The mean of the last evaluations; None for a metric that they all lack."""
    return {name: _mean_of_last(records, name) for name in metrics()}


def pseudo_labels_of(records: Sequence[Record]) -> dict[str, float | None] | None:
    """The mean of the last evaluations of share kept and accuracy of the kept; None without pseudo-labels."""
    if not any(name in record for record in records for name in PSEUDO_LABELS):
        return None
    return {name: _mean_of_last(records, name) for name in PSEUDO_LABELS}


def best_of(records: Sequence[Record]) -> dict[str, Any]:
    """Round and metrics of the evaluation with the highest accuracy; None for a metric that it lacks."""
    best = max(_trained(records), key=lambda record: record["accuracy"])
    return {name: best.get(name) for name in ("round", *metrics())}


def _mean_of_last(records: Sequence[Record], name: str) -> float | None:
    known = [record[name] for record in _trained(records)[-LAST_EVALUATIONS:] if record.get(name) is not None]
    return float(np.mean(known)) if known else None


def _trained(records: Sequence[Record]) -> Sequence[Record]:
    """The evaluations after round 0, the initial model, which counts only where there is no other."""
    return [record for record in records if record["round"] > 0] or records
