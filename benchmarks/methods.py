"""All methods side by side with several seeds: same data, split, network, optimiser and start.

    python benchmarks/methods.py fashion                # about an hour on two cores; finished runs are kept
    python benchmarks/methods.py svhn --data-dir data   # a fifth of SVHN: up to 20 minutes for each run on one core
    python benchmarks/methods.py svhn rscfed fixmatch   # some of the rows
    python benchmarks/methods.py fashion --publish      # only writes table and figures again, from the kept results

Ten clients, one of them labeled, Dirichlet 0.8, three seeds, each with a partition of its own. For each seed the
labeled client first trains alone; from that model every method trains with its own numbers, local epochs included. The
same command continues an interrupted run. Writes a directory for each run, table.md, table.json, and the figures
overview.png, curves.png and pseudo_labels.png of the rows that are complete.
"""

import json
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from common import RESULTS, keep_run, publish, runs_parser
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

import rscfed_jax as rj
from rscfed_jax.report.plots import Curve, draw_curves, save

SEEDS = (0, 1, 2)
ROWS: dict[str, dict[str, Any]] = {
    "fedavg_lower": {"method": "fedavg"},
    "fed_consist": {"method": "fed_consist"},
    "fedirm": {"method": "fedirm"},
    "sso": {"method": "sso"},
    "rscfed": {"method": "rscfed"},
    "fixmatch": {"method": "fixmatch"},
    "cbafed": {"method": "cbafed"},
    "semianagg": {"method": "semianagg"},
    "sage": {"method": "sage"},
    "fedrgd": {"method": "fedrgd"},
    "semifl": {"method": "semifl"},
    "feddb": {"method": "feddb"},
    "balanced_labels": {"method": "balanced_labels"},
    "rscfed_balanced_softmax": {"method": "rscfed", "balanced_softmax": True},
    "fixmatch_rscfed_subsets_and_distances": {"method": "fixmatch", "sampling": "subsets", "aggregator": "dma"},
    "fedavg_upper": {"method": "fedavg", "labeled_clients": 10},
}
METRICS = ("accuracy", "auc", "balanced_accuracy", "calibration_error")
TITLES = {
    "fedavg_upper": "upper bound: all ten clients labeled",
    "fedavg_lower": "lower bound: labeled client alone",
    "fixmatch_rscfed_subsets_and_distances": "fixmatch + RSCFed's aggregation",
    "rscfed_balanced_softmax": "rscfed + balanced softmax",
}


class Study(NamedTuple):
    """The data, how long to train, and what differs from `ROWS`."""

    title: str
    folder: str  # below results
    common: dict[str, Any]
    start: dict[str, Any]  # of the labeled client alone
    main: dict[str, Any]
    own: dict[str, dict[str, Any]]  # settings of single rows
    shown: dict[str, str]  # the curves of the overview, and the colours of these rows in both of its panels
    bottom: float  # where the accuracy axis of the overview begins

    def runs(self, name: str, seed: int) -> Path:
        """The kept files of a run."""
        return RESULTS / self.folder / f"{name}-seed{seed}"

    def complete(self) -> list[str]:
        """The rows of which all seeds are there."""
        return [name for name in ROWS if all((self.runs(name, seed) / "summary.json").exists() for seed in SEEDS)]


STUDIES = {
    "fashion": Study(
        title="Fashion-MNIST subset, 1 labeled client of 10, mean of 3 seeds",
        folder="methods",
        common={"dataset": "fashion", "train_fraction": 0.5},
        start={"method": "fedavg", "rounds": 60, "eval_every": 10},
        main={"rounds": 60, "eval_every": 3, "warmup_rounds": 0},
        own={},
        shown={"fedavg_upper": "0.35", "semifl": "tab:red", "rscfed": "tab:blue", "fedavg_lower": "0.6"},
        bottom=0.525,
    ),
    "svhn": Study(
        title="a fifth of SVHN, 1 labeled client of 10, mean of 3 seeds",
        folder="methods_svhn",
        common={"dataset": "svhn", "train_fraction": 0.2},
        start={"method": "fedavg", "rounds": 35, "eval_every": 35},
        main={"rounds": 300, "eval_every": 10, "warmup_rounds": 0, "checkpoint_every": 50},
        # CBAFed's constant for SVHN; and as many local epochs for methods that train five in a round.
        own={
            "cbafed": {"cbafed_cap": 0.9},
            "semifl": {"rounds": 60, "eval_every": 2},
            "feddb": {"rounds": 60, "eval_every": 2},
        },
        shown={
            "fedavg_upper": "0.35",
            "semianagg": "tab:red",
            "balanced_labels": "tab:orange",
            "rscfed": "tab:blue",
            "fedavg_lower": "0.6",
        },
        bottom=0.4,
    ),
}


def main() -> None:
    """Trains the runs that are missing, then writes the table and the figures."""
    arguments = runs_parser(__doc__, ROWS, runs="runs", first=("study", STUDIES)).parse_args()
    study = STUDIES[arguments.study]
    if arguments.publish:
        write_results(study)
        return
    rj.use_all_cores()
    for name in arguments.names or ROWS:
        for seed in SEEDS:
            train(study, name, seed, data_dir=arguments.data_dir, runs=arguments.runs / study.folder)
        write_results(study)


def train(study: Study, name: str, seed: int, *, data_dir: Path, runs: Path) -> None:
    """Runs or continues a method with a seed, after the labeled client alone, and keeps its files."""
    start, out = runs / f"start-seed{seed}", runs / f"{name}-seed{seed}"
    common = study.common | {"seed": seed, "data_dir": str(data_dir)}
    rj.train(rj.Config(**common | study.start), out=start, resume=True, progress=True)
    if not (out / "summary.json").exists():
        print(out, flush=True)
        settings = common | study.main | ROWS[name] | study.own.get(name, {}) | {"init_from": str(start)}
        rj.train(rj.Config(**settings), out=out, resume=True, progress=True)
    keep_run(out, f"{study.folder}/{name}-seed{seed}")


def write_results(study: Study) -> None:
    """The table, as Markdown and JSON, and the curves as means over seeds, of the rows that are complete."""
    rows: dict[str, Any] = {}
    for name in study.complete():
        finals = [read(study, name, seed, "summary.json") for seed in SEEDS]
        rows[name] = {metric: [final["final"][metric] for final in finals] for metric in METRICS}
        rows[name]["seconds_per_round"] = [final["seconds_per_round"] for final in finals]
        rows[name]["models_up"] = finals[0]["models_up"]
        if "pseudo_labels" in finals[0]:
            rows[name] |= {
                part: [final["pseudo_labels"][part] for final in finals] for part in finals[0]["pseudo_labels"]
            }
    if rows:
        (RESULTS / study.folder / "table.md").write_text(as_table(rows))
        draw_figures(study)
        publish(f"{study.folder}/table", rows)


def draw_figures(study: Study) -> None:
    """Draws the figures from the kept results."""
    folder = RESULTS / study.folder
    curves = {name: mean_curve(study, name) for name in study.complete()}
    rj.plot_curves(curves, folder / "curves.png", title=study.title)
    if with_labels := {name: records for name, records in curves.items() if "kept_share" in records[-1]}:
        rj.plot_pseudo_labels(with_labels, folder / "pseudo_labels.png", title=study.title)
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.05))
    draw_shown(left, study, curves)
    draw_finals(right, study)
    figure.suptitle(study.title)
    save(figure, folder / "overview.png")


def draw_shown(axes: Axes, study: Study, curves: dict[str, list[dict[str, Any]]]) -> None:
    """The curves of the best methods, of RSCFed and of the bounds."""
    shown = {name: colour for name, colour in study.shown.items() if name in curves}
    for name, colour in shown.items():
        rounds = [record["round"] for record in curves[name]]
        accuracies = [record["accuracy"] for record in curves[name]]
        axes.set_prop_cycle(color=[colour])
        draw_curves(axes, [Curve(name, rounds, accuracies, [0.0] * len(rounds))], metric="accuracy")
    axes.legend([TITLES.get(name, name) for name in shown], frameon=False, fontsize=9, loc="lower right")
    axes.set_ylim(bottom=study.bottom)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def draw_finals(axes: Axes, study: Study) -> None:
    """The final accuracy of every row: a bar for the mean, a dot for each seed, the best row on top."""
    accuracies = {
        name: [read(study, name, seed, "summary.json")["final"]["accuracy"] for seed in SEEDS]
        for name in study.complete()
    }
    names = sorted(accuracies, key=lambda name: fmean(accuracies[name]))
    most = max(max(values) for values in accuracies.values())
    for place, name in enumerate(names):
        mean_accuracy, colour = fmean(accuracies[name]), study.shown.get(name, "tab:blue")
        axes.barh(place, mean_accuracy, height=0.72, color=colour, alpha=0.75 if name in study.shown else 0.2)
        axes.plot(accuracies[name], [place] * len(accuracies[name]), "k.", markersize=4)
        axes.text(1.03 * most, place, f"{100 * mean_accuracy:.1f}", va="center", fontsize=8)
    axes.set_yticks(range(len(names)), [TITLES.get(name, name) for name in names], fontsize=8)
    axes.set(xlabel="Final test accuracy (dots: seeds)", xlim=(0, 1.1 * most), ylim=(-0.6, len(names) - 0.4))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.spines[["top", "right"]].set_visible(False)


def read(study: Study, name: str, seed: int, file: str) -> Any:
    """A kept file of a run; the lines of metrics.jsonl as a list."""
    text = (study.runs(name, seed) / file).read_text()
    return [json.loads(line) for line in text.splitlines()] if file.endswith("l") else json.loads(text)


def mean_curve(study: Study, name: str) -> list[dict[str, Any]]:
    """Evaluated rounds with the mean over seeds of every number, and of every number of a list."""
    runs = [read(study, name, seed, "metrics.jsonl") for seed in SEEDS]
    return [
        {key: mean([record.get(key) for record in records]) for key in records[0]}
        for records in zip(*runs, strict=True)
    ]


def mean(values: list[Any]) -> Any:
    """The mean of numbers, or of lists of numbers, None where one of them is unknown."""
    if all(isinstance(value, list) for value in values):
        return [mean(list(parts)) for parts in zip(*values, strict=False)]
    return fmean(values) if all(isinstance(value, int | float) for value in values) else None


def as_table(rows: dict[str, Any]) -> str:
    """Markdown, in percent, best accuracy first; the last column is the accuracy difference from RSCFed by seed."""
    base = rows["rscfed"]["accuracy"] if "rscfed" in rows else None
    lines = [
        f"Mean of the last five evaluations on the test set, in percent, over {len(SEEDS)} seeds, with deviations.",
        "",
        "| method | accuracy | AUC | calibration error | labels kept | of these right | beside RSCFed, by seed |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in sorted(rows, key=lambda name: -fmean(rows[name]["accuracy"])):
        row = rows[name]
        quality = [percent(row.get(part)) for part in ("kept_share", "kept_accuracy")]
        pairs = zip(row["accuracy"], base, strict=True) if base else ()
        beside = " ".join(f"{100 * (ours - theirs):+.1f}" for ours, theirs in pairs)
        parts = [
            name,
            f"{100 * fmean(row['accuracy']):.1f} ± {100 * stdev(row['accuracy']):.1f}",
            percent(row["auc"]),
            percent(row["calibration_error"]),
        ]
        lines.append("| " + " | ".join([*parts, *quality, beside]) + " |")
    return "\n".join(lines) + "\n"


def percent(values: list[float | None] | None) -> str:
    """The mean of what is known."""
    known = [value for value in values or [] if value is not None]
    return f"{100 * fmean(known):.1f}" if known else ""


if __name__ == "__main__":
    main()
