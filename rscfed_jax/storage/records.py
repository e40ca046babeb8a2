"""The evaluated rounds of a run: reads them, and finds final metrics, best round and accuracy of pseudo-labels."""

import json
import math
import re
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from rscfed_jax.config.documents import parse_json
from rscfed_jax.config.limits import OverLimitError
from rscfed_jax.config.registry import metrics

LAST_EVALUATIONS = 5  # the final metrics are their mean
MOST_LISTED = 200  # larger federations do not record the weights and accuracies of single clients
PSEUDO_LABELS = {"kept_share": "Share of samples kept", "kept_accuracy": "Accuracy of kept labels"}
BY_CLASS = {name: f"{name}_by_class" for name in PSEUDO_LABELS}  # lists over the true classes
CLIENT_ACCURACY = ("client_accuracy_mean", "client_accuracy_min")  # "client_accuracy" is the list over clients

COUNTS = ("models_down", "models_up", "bytes_down", "bytes_up")  # of a record: sent so far
NUMBERS = (*COUNTS, *CLIENT_ACCURACY, *BY_CLASS)  # of a record, besides the metrics
LISTS = ("client_accuracy", *BY_CLASS.values())

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


def read_record(line: bytes) -> dict[str, Any]:
    """A line of metrics.jsonl; a ValueError if it cannot be that of a run."""
    try:
        record = parse_json(line)
    except OverLimitError:
        raise
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise ValueError("is not a JSON object")
    round_ = record.get("round")
    if type(round_) is not int or not 0 <= round_ <= sys.maxsize:
        raise ValueError("has no round")
    record |= {name: number_in(record, name) for name in (*metrics(), *NUMBERS) if name in record}
    record |= {name: _numbers_in(record, name) for name in LISTS if name in record}
    if record.get("accuracy") is None:
        raise ValueError("has no accuracy")
    if (weights := record.get("client_weights")) is not None:
        if not isinstance(weights, dict) or not all(re.fullmatch("[0-9]{1,9}", client) for client in weights):
            raise ValueError("has client_weights that do not name clients")
        record["client_weights"] = {client: number_in(weights, client) for client in weights}
    return record


def _numbers_in(content: dict[str, Any], name: str) -> list[float | None]:
    if not isinstance(content[name], list):
        raise ValueError(f"has {name} that is not a list")
    return [number_in({name: value}, name) for value in content[name]]


def number_in(content: dict[str, Any], name: str) -> float | None:
    """A number of a file's JSON object, None where it is absent, null or NaN; a ValueError for anything else."""
    value = content.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > sys.maxsize:
        raise ValueError(f"has {name} {json.dumps(value)[:40]}, which must be a finite number")
    return None if math.isnan(value) else value
