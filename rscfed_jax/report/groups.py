"""Runs that differ only in their seed, as one line: means, standard deviations, and a name to tell lines apart."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from rscfed_jax.report.collect import COUNTS, METRICS, Found, Run

Moments = tuple[float, float | None]  # mean, and the standard deviation where there is more than one number


@dataclass(frozen=True)
class Point:
    """One evaluated round of a group."""

    round: int
    metrics: dict[str, Moments | None]
    sent: dict[str, float | None]  # means of models and bytes so far


@dataclass(frozen=True)
class Group:
    """Finished runs with the same settings but for the seed, or one unfinished run."""

    name: str
    runs: list[Run]
    final: dict[str, Moments | None]
    best: dict[str, Moments | None]  # with the round
    points: list[Point]  # the rounds that every run has evaluated

    @property
    def settings(self) -> dict[str, Any]:
        """Those that the runs share; the seed is the first run's."""
        return self.runs[0].settings

    @property
    def finished(self) -> bool:
        """Whether the runs have all their rounds."""
        return self.runs[0].finished


@dataclass(frozen=True)
class Report:
    """All that a report shows, in whatever format."""

    groups: list[Group]
    differing: list[str]  # settings that groups differ in
    common: dict[str, Any]  # the others
    notes: list[str]  # what a reader must know before comparing

    @property
    def runs(self) -> list[Run]:
        """Of all groups."""
        return [run for group in self.groups for run in group.runs]


def build_report(found: Found) -> Report:
    """Puts runs of one setting together and says what is missing or does not compare."""
    together: dict[str, list[Run]] = {}
    for run in found.runs:
        settings = {name: value for name, value in run.settings.items() if name != "seed"}
        key = json.dumps(settings, sort_keys=True) + ("" if run.finished else f" {run.path}")
        together.setdefault(key, []).append(run)
    parts = [sorted(runs, key=lambda run: str(run.seed).zfill(12)) for runs in together.values()]
    everything = list(dict.fromkeys(name for runs in parts for name in runs[0].settings if name != "seed"))
    values = {name: [_as_text(runs[0].settings.get(name)) for runs in parts] for name in everything}
    differing = [name for name in everything if len(set(values[name])) > 1]
    groups = [
        Group(
            name=name,
            runs=runs,
            final={metric: _moments([run.final[metric] for run in runs]) for metric in METRICS},
            best={metric: _moments([run.best[metric] for run in runs]) for metric in ("round", *METRICS)},
            points=_points(runs),
        )
        for name, runs in zip(_names(parts, differing), parts, strict=True)
    ]
    common = {name: found.runs[0].settings.get(name) for name in everything if name not in differing}
    return Report(groups, differing, common, _notes(found, groups))


def _as_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _moments(values: Sequence[float | None]) -> Moments | None:
    there = [value for value in values if value is not None]
    if not there:
        return None
    return fmean(there), stdev(there) if len(there) > 1 else None


def _points(runs: list[Run]) -> list[Point]:
    by_round = [{record["round"]: record for record in run.records} for run in runs]
    points = []
    for round_ in sorted(set.intersection(*(set(records) for records in by_round))):
        records = [of_run[round_] for of_run in by_round]
        metrics = {name: _moments([record[name] for record in records]) for name in METRICS}
        sent = {name: (_moments([record[name] for record in records]) or (None,))[0] for name in COUNTS}
        points.append(Point(round_, metrics, sent))
    return points


def _names(parts: list[list[Run]], differing: list[str]) -> list[str]:
    """The directory's name without its seed; with more said where two would be called the same."""

    def of_directory(runs: list[Run]) -> str:
        whole = [run.path.resolve().name for run in runs]
        if not runs[0].finished:
            return f"{whole[0]}, {'diverged' if runs[0].diverged else 'unfinished'}"
        names = {_without_seed(name, run.seed) for name, run in zip(whole, runs, strict=True)}
        return names.pop() if len(names) == 1 else str(runs[0].settings.get("method", "run"))

    def with_settings(runs: list[Run]) -> str:
        # Long tables differ in many settings; a name is no place for all.
        said = [f"{name} {runs[0].settings.get(name)}" for name in differing if name != "method"][:3]
        return f"{of_directory(runs)} ({', '.join(said)})" if said else of_directory(runs)

    def with_path(runs: list[Run]) -> str:
        return str(runs[0].path)

    names = [of_directory(runs) for runs in parts]
    for longer in (with_settings, with_path):
        names = [longer(runs) if names.count(name) > 1 else name for name, runs in zip(names, parts, strict=True)]
    return names


def _without_seed(name: str, seed: int) -> str:
    return re.sub(rf"(?:[-_. ]|[-_. ]?seed[-_= ]?)0*{re.escape(str(seed))}$", "", name) or name


def _notes(found: Found, groups: list[Group]) -> list[str]:
    notes = []
    datasets = list(dict.fromkeys(str(run.settings.get("dataset")) for run in found.runs))
    if len(datasets) > 1:
        notes.append(f"The runs are of different data sets ({', '.join(datasets)}): their numbers do not compare.")
    validated = [run for run in found.runs if run.settings.get("validation")]
    if validated:
        which = "The runs have" if len(validated) == len(found.runs) else f"{len(validated)} of the runs have"
        notes.append(
            f"{which} training samples, held out by --validation, in place of the test set: what is said of the test "
            "set is said of those."
        )
    for group in groups:
        seeds = [run.seed for run in group.runs]
        for seed in dict.fromkeys(seed for seed in seeds if seeds.count(seed) > 1):
            notes.append(f"{group.name}: seed {seed} is there {seeds.count(seed)} times, and counted so.")
        if not group.finished:
            run = group.runs[0]
            reached = f"evaluated up to round {run.last_round} of {run.settings.get('rounds', '?')}"
            state = f"diverged ({run.diverged})" if run.diverged else "is not finished"
            notes.append(f"{run.path} {state}, {reached}: final and best are those so far.")
    for place in found.empty:
        notes.append(f"{place} is left out: it has no metrics yet.")
    lacking: dict[tuple[str, str], Callable[[Run], bool]] = {
        ("AUC", "it is in no line of metrics.jsonl"): lambda run: _never(run, "auc"),
        ("communication", "bytes_up is in no line of metrics.jsonl"): lambda run: _never(run, "bytes_up"),
        ("class histogram", "there is no partition.json"): lambda run: run.partition is None,
        ("weights of clients", "client_weights is in no line of metrics.jsonl"): lambda run: not has_weights(run),
        ("confusion matrix", "summary.json has none"): lambda run: run.finished and run.confusion is None,
        ("confusion matrix", "it comes with the last round"): lambda run: not run.finished,
    }
    for (what, why), lacks in lacking.items():
        names = [str(run.path) for run in found.runs if lacks(run)]
        if names:
            of = "all runs" if len(names) == len(found.runs) > 1 else ", ".join(names)
            notes.append(f"No {what} for {of}: {why}.")
    return notes


def _never(run: Run, name: str) -> bool:
    return all(record[name] is None for record in run.records)


def has_weights(run: Run) -> bool:
    """Whether the run tells the weights of its clients."""
    return any(record["client_weights"] for record in run.records)
