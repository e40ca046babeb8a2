"""What the host knows about a run: evaluated rounds, rounds since the last evaluation, the best model.

A checkpoint holds all of it, so that a run may stop between two evaluations and still give the same averages.
"""

from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Self

import jax
import numpy as np

from rscfed_jax.core.metrics import Metrics
from rscfed_jax.core.types import Model, RoundReport
from rscfed_jax.runner.pseudo_labels import judgement
from rscfed_jax.runner.start import surroundings
from rscfed_jax.storage.records import MOST_LISTED, Record, best_of, final_of, pseudo_labels_of


class DivergedError(ArithmeticError):
    """The global model would no longer be finite; the message names the round and the clients."""


@dataclass
class History:
    """Grows with the run. All but the best model is saved as JSON, which keeps floats to the bit."""

    best_model: Model  # host arrays; the model that the run started with until a round was evaluated
    clients: int  # in the federation, a server that holds the labels among them
    records: list[Record] = field(default_factory=list)  # the lines of metrics.jsonl
    pending: list[Record] = field(default_factory=list)  # one for each round since the last evaluation
    seconds: float = 0.0  # of training so far

    @property
    def trained(self) -> list[Record]:
        """The evaluated rounds but round 0, the model before the first round."""
        return [record for record in self.records if record["round"] > 0]

    def to_json(self) -> dict[str, Any]:
        """All but the best model."""
        return {"records": self.records, "pending": self.pending, "seconds": self.seconds}

    @classmethod
    def from_json(cls, content: dict[str, Any], *, best_model: Model, clients: int) -> Self:
        """The history that `to_json` was made of."""
        return cls(best_model=best_model, clients=clients, **content)

    def add_rounds(self, reports: RoundReport, *, first: int) -> None:
        """Takes in host reports [rounds, ...], the first of them of round `first`; refuses a model that diverged."""
        check_finite(reports, first=first)
        for number in range(len(reports.finite)):
            report = _round_of(reports, number)
            self.pending.append(
                {
                    "labeled_loss": _finite_or_none(report.labeled_loss),
                    "consistency_loss": _finite_or_none(report.consistency_loss),
                    "broken": report.subsets[report.broken].tolist(),
                    "dropped": int(report.dropped.sum()),
                    "attacker_weights": report.weights[report.attackers].tolist(),
                    "weights": _by_client(report) if self.clients <= MOST_LISTED else {},
                    "judged": None if report.judged is None else np.rint(report.judged).astype(int).tolist(),
                }
            )

    def add_evaluation(self, round_: int, metrics: Metrics, more: Record, model: Model) -> Record:
        """Closes the pending rounds with an evaluation and returns the record of it, which also holds `more`."""
        record = {"round": round_, **{name: float(value) for name, value in metrics._asdict().items()}}
        # A checkpoint of an older version has rounds that were not judged.
        judged = [facts["judged"] for facts in self.pending if facts.get("judged") is not None]
        record |= _averages(self.pending) | judgement(judged) | more | {"seconds": round(self.seconds, 3)}
        if round_ > 0 and record["accuracy"] > max((r["accuracy"] for r in self.trained), default=-1.0):
            self.best_model = jax.tree.map(np.array, model)  # a copy: it may be a view of all cells' models
        self.records.append(record)
        self.pending = []
        return record


def check_finite(reports: RoundReport, *, first: int) -> None:
    """Refuses host reports [rounds, ...] after one of which the global model is not finite; `first` is their first."""
    for number in np.flatnonzero(~reports.finite)[:1]:
        raise DivergedError(_why_diverged(_round_of(reports, number), first + int(number)))


def _round_of(reports: RoundReport, number: int) -> RoundReport:
    return jax.tree.map(lambda leaf: leaf[number], reports)


def _why_diverged(report: RoundReport, round_: int) -> str:
    when = f"round {round_}" if round_ > 0 else "a warm-up round"
    far = report.subsets[~np.isfinite(report.distances) | report.broken]
    named = sorted(set((far if far.size else report.subsets).ravel().tolist()))
    which = "whose model was not finite or infinitely far away" if far.size else "that took part"
    clients = ", ".join(map(str, named))
    return f"the global model is no longer finite after {when}; the clients {which}: {clients}"


def _by_client(report: RoundReport) -> dict[str, list[float]]:
    """The weights that each client had in the subsets that drew it, by its id as JSON writes it."""
    weights: dict[str, list[float]] = {}
    for client, weight in zip(report.subsets.ravel().tolist(), report.weights.ravel().tolist(), strict=True):
        weights.setdefault(str(client), []).append(weight)
    return weights


def _finite_or_none(value: Any) -> float | None:
    """A round in which no client has such a loss reports NaN."""
    return float(value) if np.isfinite(value) else None


def _averages(rounds: list[Record]) -> Record:
    """Means over the rounds since the last evaluation, and the broken and dropped clients among them.

    The weight of a client is the mean over the subsets that drew it.
    """

    def mean(values: list[float | None]) -> float | None:
        there = [value for value in values if value is not None]
        return fmean(there) if there else None

    broken = [client for facts in rounds for client in facts["broken"]]
    weights: dict[str, list[float]] = {}
    for facts in rounds:
        for client, values in facts["weights"].items():
            weights.setdefault(client, []).extend(values)
    return {
        "labeled_loss": mean([facts["labeled_loss"] for facts in rounds]),
        "consistency_loss": mean([facts["consistency_loss"] for facts in rounds]),
        "broken_clients": len(broken),
        "broken_ids": sorted(set(broken)),
        "dropped_clients": sum(facts["dropped"] for facts in rounds),
        "attacker_weight": mean([weight for facts in rounds for weight in facts["attacker_weights"]]),
        "client_weights": {client: fmean(weights[client]) for client in sorted(weights, key=int)},
    }


def summarise(
    history: History,
    *,
    confusion: np.ndarray,
    seconds_per_round: float,
    compile_seconds: float,
    devices: int,
    conv: str | None,
    chunk: int,
    missing: list[int],
) -> dict[str, Any]:
    """The content of summary.json."""
    last, pseudo_labels = history.records[-1], pseudo_labels_of(history.records)
    return {
        "final": final_of(history.records),
        "best": best_of(history.records),
        **({} if pseudo_labels is None else {"pseudo_labels": pseudo_labels}),
        "rounds": last["round"],
        "seconds_per_round": seconds_per_round,
        "compile_seconds": compile_seconds,
        **{name: last[name] for name in ("models_down", "models_up", "bytes_down", "bytes_up")},
        **surroundings(devices),
        "conv": conv,
        "chunk": chunk,
        "classes_without_test_samples": missing,
        "confusion": confusion.tolist(),
    }
