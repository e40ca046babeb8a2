"""What the evaluated rounds of a run amount to: its final metrics and its best round."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rscfed_jax.config.registry import metrics

LAST_EVALUATIONS = 5  # the final metrics are their mean

Record = dict[str, Any]  # a line of metrics.jsonl


def final_of(records: Sequence[Record]) -> dict[str, float | None]:
    """The mean of the last evaluations; None for a metric that they all lack."""

    def mean(name: str) -> float | None:
        known = [record[name] for record in _trained(records)[-LAST_EVALUATIONS:] if record.get(name) is not None]
        return float(np.mean(known)) if known else None

    return {name: mean(name) for name in metrics()}


def best_of(records: Sequence[Record]) -> dict[str, Any]:
    """Round and metrics of the evaluation with the highest accuracy; None for a metric that it lacks."""
    best = max(_trained(records), key=lambda record: record["accuracy"])
    return {name: best.get(name) for name in ("round", *metrics())}


def _trained(records: Sequence[Record]) -> Sequence[Record]:
    """The evaluations after round 0, the initial model, which counts only where there is no other."""
    return [record for record in records if record["round"] > 0] or records
