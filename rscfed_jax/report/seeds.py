"""Runs that differ only in their seed, as one line: means, standard deviations, and a name to tell lines apart."""

import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import zip_longest
from statistics import fmean, stdev
from typing import Any

from rscfed_jax.config import HASHES
from rscfed_jax.config.registry import metrics
from rscfed_jax.report.collect import Found, Run
from rscfed_jax.storage.records import BY_CLASS, PSEUDO_LABELS, pseudo_labels_of

CURVES = ("accuracy", "auc")  # the metrics that figures and the table of best rounds show
SENT = ("models_up", "models_down", "bytes_up", "bytes_down")
OF_A_SEED = ("init_from", "partition_file")  # files that each seed may have of its own

Moments = tuple[float, float | None]  # mean, and the standard deviation where there is more than one number


def moments(values: Iterable[float | None]) -> Moments | None:
    """Mean and standard deviation of the numbers among the values; None without any, no deviation of a single one."""
    numbers = [value for value in values if value is not None and not math.isnan(value)]
    if not numbers:
        return None
    return fmean(numbers), stdev(numbers) if len(numbers) > 1 else None


@dataclass(frozen=True)
class Evaluation:
    """One evaluated round of a line."""

    round: int
    metrics: dict[str, Moments | None]  # and how right pseudo-labels were
    sent: dict[str, float | None]  # means of models and bytes so far


@dataclass(frozen=True)
class Line:
    """One line of the report: finished runs with the same settings but for the seed, or one unfinished run."""

    name: str
    runs: list[Run]
    settings: dict[str, Any]  # that the runs share; a file of each seed has * for the seed
    final: dict[str, Moments | None]
    best: dict[str, Moments | None]  # with the round
    pseudo_labels: dict[str, Moments | None]  # as `final`; all None without any
    pseudo_labels_by_class: dict[str, list[float | None]]  # [classes] means at the last evaluation; empty without any
    evaluations: list[Evaluation]  # of the rounds that every run has evaluated

    @property
    def sent(self) -> dict[str, float | None]:
        """Means of models and bytes up to the last evaluation."""
        return self.evaluations[-1].sent if self.evaluations else dict.fromkeys(SENT)

    @property
    def finished(self) -> bool:
        """Whether the runs have all their rounds."""
        return self.runs[0].finished

    @property
    def has_pseudo_labels(self) -> bool:
        """Whether there were any samples that could have got one."""
        return any(self.pseudo_labels.values())


@dataclass(frozen=True)
class Report:
    """All that a report shows, in whatever format."""

    lines: list[Line]  # the most accurate first
    differing: list[str]  # settings that the lines differ in
    common: dict[str, Any]  # the others
    notes: list[str]  # what a reader must know before comparing

    @property
    def runs(self) -> list[Run]:
        """The runs of all lines."""
        return [run for line in self.lines for run in line.runs]

    @property
    def run_names(self) -> list[str]:
        """How each of the runs is called where single ones can be chosen."""
        return [f"{line.name}, seed {run.seed}" for line in self.lines for run in line.runs]


def build_report(found: Found) -> Report:
    """Puts runs with the same settings together and notes what is missing or cannot be compared."""
    together: dict[str, list[Run]] = {}
    for run in found.runs:
        key = _as_key(_but_for_seed(run)) + ("" if run.finished else f" {run.path}")
        together.setdefault(key, []).append(run)
    parts = [sorted(runs, key=lambda run: str(run.seed).zfill(12)) for runs in together.values()]
    shared = [_but_for_seed(runs[0]) if len(found.runs) > 1 else runs[0].settings for runs in parts]
    differing, common = _compare(shared)
    lines = [
        Line(
            name=name,
            runs=runs,
            settings=settings,
            final={metric: moments(run.final[metric] for run in runs) for metric in metrics()},
            best={metric: moments(run.best[metric] for run in runs) for metric in ("round", *metrics())},
            pseudo_labels=_pseudo_labels(runs),
            pseudo_labels_by_class={name: _last_by_class(runs, name) for name in PSEUDO_LABELS},
            evaluations=_evaluations(runs),
        )
        for name, runs, settings in zip(_names(parts, shared, differing), parts, shared, strict=True)
    ]
    lines.sort(key=_accuracy, reverse=True)
    return Report(lines, differing, common, _notes(found, lines))


def _accuracy(line: Line) -> float:
    return -math.inf if line.final["accuracy"] is None else line.final["accuracy"][0]


def _but_for_seed(run: Run) -> dict[str, Any]:
    """The run's settings as its other seeds have them: start-seed0 is start-seed* there."""
    settings = {name: value for name, value in run.settings.items() if name != "seed"}
    for name in OF_A_SEED:
        if isinstance(settings.get(name), str):
            settings[name] = re.sub(rf"(seed[-_= ]?)0*{re.escape(str(run.seed))}(?!\d)", r"\1*", settings[name])
    return settings


def _as_key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _compare(settings: list[dict[str, Any]]) -> tuple[list[str], dict[str, Any]]:
    """The names of settings that differ, and the settings in common.

    A method's own settings are compared among the runs of that method.
    """
    differing, common = [], {}
    for name in dict.fromkeys(name for each in settings for name in each if name != "seed"):
        holders = [each for each in settings if name in each]
        is_own = all(name.startswith(f"{each.get('method')}_") for each in holders)
        if len({_as_key(each.get(name)) for each in (holders if is_own else settings)}) > 1:
            differing.append(name)
        elif name not in HASHES or holders[0][name] is not None:
            common[name] = holders[0][name]
    return differing, common


def _evaluations(runs: list[Run]) -> list[Evaluation]:
    by_round = [{record["round"]: record for record in run.records} for run in runs]
    evaluations = []
    for round_ in sorted(set.intersection(*(set(records) for records in by_round))):
        records = [of_run[round_] for of_run in by_round]
        of_metrics = {name: moments(record.get(name) for record in records) for name in (*metrics(), *PSEUDO_LABELS)}
        sent = {name: (moments(record.get(name) for record in records) or (None,))[0] for name in SENT}
        evaluations.append(Evaluation(round_, of_metrics, sent))
    return evaluations


def _pseudo_labels(runs: list[Run]) -> dict[str, Moments | None]:
    of_runs = [pseudo_labels_of(run.records) or {} for run in runs]
    return {name: moments(of_run.get(name) for of_run in of_runs) for name in PSEUDO_LABELS}


def _last_by_class(runs: list[Run], name: str) -> list[float | None]:
    lists = [run.records[-1].get(BY_CLASS[name]) or [] for run in runs]
    return [(moments(of_class) or (None,))[0] for of_class in zip_longest(*lists)]


def _names(parts: list[list[Run]], shared: list[dict[str, Any]], differing: list[str]) -> list[str]:
    """The directory's name without its seed; longer where two lines would have the same.

    A grid's directory `method-semifl-seed0` is called `semifl`.
    """

    def of_directory(runs: list[Run]) -> str:
        whole = [_without_word(run.path.resolve().name, run.settings.get("method")) for run in runs]
        if not runs[0].finished:
            return f"{whole[0]}, {'diverged' if runs[0].diverged else 'unfinished'}"
        names = {_without_seed(name, run.seed) for name, run in zip(whole, runs, strict=True)}
        if len({*whole}) > 1 and len(names) > 1:  # a bare number is a seed where it is all that differs
            names = {re.sub(rf"[-_ ]0*{run.seed}$", "", name) for name, run in zip(whole, runs, strict=True)}
        return names.pop() if len(names) == 1 else str(runs[0].settings.get("method", "run"))

    def with_settings(runs: list[Run], settings: dict[str, Any]) -> str:
        # Long tables differ in many settings; a name is no place for all.
        named = [f"{name} {settings.get(name)}" for name in differing if name != "method"][:3]
        return f"{of_directory(runs)} ({', '.join(named)})" if named else of_directory(runs)

    def with_path(runs: list[Run], _: dict[str, Any]) -> str:
        return str(runs[0].path)

    names = [of_directory(runs) for runs in parts]
    for longer in (with_settings, with_path):
        names = [
            longer(runs, settings) if names.count(name) > 1 else name
            for name, runs, settings in zip(names, parts, shared, strict=True)
        ]
    return names


def _without_word(name: str, method: Any) -> str:
    word = "method-" + str(method).replace("_", "-")  # as a grid names its cells
    return name.removeprefix("method-") if name.startswith(word) else name


def _without_seed(name: str, seed: int) -> str:
    return re.sub(rf"[-_. ]?seed[-_= ]?0*{re.escape(str(seed))}$", "", name) or name


def _notes(found: Found, lines: list[Line]) -> list[str]:
    notes = []
    datasets = list(dict.fromkeys(str(run.settings.get("dataset")) for run in found.runs))
    if len(datasets) > 1:
        notes.append(f"The runs use different data sets ({', '.join(datasets)}): their numbers cannot be compared.")
    validated = [run for run in found.runs if run.settings.get("validation")]
    if validated:
        which = "The runs were" if len(validated) == len(found.runs) else f"{len(validated)} of the runs were"
        notes.append(
            f"{which} evaluated on training samples held out by --validation: for them, these samples take the place "
            "of the test set."
        )
    for line in lines:
        seeds = [run.seed for run in line.runs]
        for seed in dict.fromkeys(seed for seed in seeds if seeds.count(seed) > 1):
            notes.append(f"{line.name}: {seeds.count(seed)} runs have seed {seed}; each of them counts.")
        if not line.finished:
            run = line.runs[0]
            reached = f"evaluated up to round {run.last_round} of {run.settings.get('rounds', '?')}"
            state = f"diverged ({run.diverged})" if run.diverged else "is not finished"
            notes.append(f"{run.path} {state}, {reached}: final and best are those so far.")
    for place in found.empty:
        notes.append(f"{place} is left out: it has no metrics yet.")
    return [*notes, *_lacking_metrics(found.runs), *_lacking_parts(found.runs)]


def _lacking_metrics(runs: list[Run]) -> list[str]:
    """One note for the metrics that the same runs lack; if no run has a metric, only a lacking figure is worth one."""
    lacking: dict[tuple[str, ...], list[str]] = {}
    for name, title in metrics().items():
        paths = tuple(str(run.path) for run in runs if _never(run, name))
        if paths and (len(paths) < len(runs) or name in CURVES):
            lacking.setdefault(paths, []).append(in_a_sentence(title))
    return [
        _no(
            ", ".join(titles), paths, runs, f"{'it is' if len(titles) == 1 else 'they are'} in no line of metrics.jsonl"
        )
        for paths, titles in lacking.items()
    ]


def _lacking_parts(runs: list[Run]) -> list[str]:
    lacking: dict[tuple[str, str], Callable[[Run], bool]] = {
        ("communication", "bytes_up is in no line of metrics.jsonl"): lambda run: _never(run, "bytes_up"),
        ("class histogram", "partition.json is missing"): lambda run: run.partition is None,
        ("class histogram", "there are too many clients"): lambda run: bool(run.partition and not run.partition.labels),
        ("weights of clients", "client_weights is in no line of metrics.jsonl"): lambda run: not has_weights(run),
        ("confusion matrix", "summary.json does not have it"): lambda run: run.finished and run.confusion is None,
        ("confusion matrix", "it is recorded after the last round"): lambda run: not run.finished,
    }
    paths = {said: tuple(str(run.path) for run in runs if lacks(run)) for said, lacks in lacking.items()}
    return [_no(what, paths[what, why], runs, why) for what, why in lacking if paths[what, why]]


def _no(what: str, paths: tuple[str, ...], runs: list[Run], why: str) -> str:
    return f"No {what} for {'any run' if len(paths) == len(runs) > 1 else ', '.join(paths)}: {why}."


def _never(run: Run, name: str) -> bool:
    return all(record.get(name) is None for record in run.records)


def has_weights(run: Run) -> bool:
    """Whether the weights of the run's clients were recorded."""
    return any(record.get("client_weights") for record in run.records)


def in_a_sentence(title: str) -> str:
    """A metric's title without its capital, unless it is an abbreviation."""
    return title if title[:2].isupper() else title[:1].lower() + title[1:]
