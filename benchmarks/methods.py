"""All methods side by side on the embedded Fashion-MNIST subset: same data, split, network, optimiser and start.

    python benchmarks/methods.py             # about an hour on two cores; finished runs in runs/methods are kept
    python benchmarks/methods.py --figures   # only draws the figures again, from the kept results

Ten clients, one of them labeled, Dirichlet 0.8, half of the samples, three seeds. For each seed the labeled client
trains alone for 60 rounds; from that model every method has 60 rounds with its own numbers, local epochs included.
Writes results/methods: a directory for each run, table.md, table.json, and the figures overview.png (which the README
shows), curves.png and pseudo_labels.png.
"""

import argparse
import json
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from common import RESULTS, keep_run, publish
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

import rscfed_jax as rj
from rscfed_jax.report.plots import Curve, draw_curves, save

RUNS = Path("runs/methods")
SEEDS = (0, 1, 2)
COMMON: dict[str, Any] = {"dataset": "fashion", "train_fraction": 0.5}
START = {"method": "fedavg", "rounds": 60, "eval_every": 10}
MAIN = {"rounds": 60, "eval_every": 3, "warmup_rounds": 0}
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
# The curves of the overview, and the colours of these rows in both of its panels.
SHOWN = {"fedavg_upper": "0.35", "semifl": "tab:red", "rscfed": "tab:blue", "fedavg_lower": "0.6"}


def main() -> None:
    """Trains the runs that are missing, then writes the table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", action="store_true", help="only draw the figures, from the kept results")
    if parser.parse_args().figures:
        print(json.dumps({"figures": draw_figures(list(SEEDS))}))
        return
    rj.use_all_cores()
    for seed in SEEDS:
        start = RUNS / f"start-seed{seed}"
        rj.train(rj.Config(seed=seed, **COMMON, **START), out=start, resume=True, progress=True)
        for name, settings in ROWS.items():
            out = RUNS / f"{name}-seed{seed}"
            config = rj.Config(seed=seed, init_from=str(start), **COMMON, **MAIN | settings)
            if not (out / "summary.json").exists():
                print(out, flush=True)
                rj.train(config, out=out, resume=True, progress=True)
            keep_run(out, f"methods/{name}-seed{seed}")
        write_results([done for done in SEEDS if done <= seed])


def write_results(seeds: list[int]) -> None:
    """The table, as Markdown and JSON, and the curves as means over the seeds that are there."""
    rows: dict[str, Any] = {}
    for name in ROWS:
        finals = [read(name, seed, "summary.json") for seed in seeds]
        rows[name] = {metric: [final["final"][metric] for final in finals] for metric in METRICS}
        rows[name]["seconds_per_round"] = [final["seconds_per_round"] for final in finals]
        rows[name]["models_up"] = finals[0]["models_up"]
        if "pseudo_labels" in finals[0]:
            rows[name] |= {
                part: [final["pseudo_labels"][part] for final in finals] for part in finals[0]["pseudo_labels"]
            }
    (RESULTS / "methods" / "table.md").write_text(as_table(rows, len(seeds)))
    draw_figures(seeds)
    publish("methods/table", rows)


def draw_figures(seeds: list[int]) -> list[str]:
    """Draws the figures from the kept results and returns their names."""
    folder = RESULTS / "methods"
    curves = {name: mean_curve(name, seeds) for name in ROWS}
    title = f"Fashion-MNIST subset, 1 labeled client of 10, mean of {len(seeds)} seeds"
    rj.plot_curves(curves, folder / "curves.png", title=title)
    with_labels = {name: records for name, records in curves.items() if "kept_share" in records[-1]}
    rj.plot_pseudo_labels(with_labels, folder / "pseudo_labels.png", title=title)
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.05))
    draw_shown(left, curves)
    draw_finals(right, {name: [read(name, seed, "summary.json")["final"] for seed in seeds] for name in ROWS})
    figure.suptitle(title)
    save(figure, folder / "overview.png")
    return ["overview.png", "curves.png", "pseudo_labels.png"]


def draw_shown(axes: Axes, curves: dict[str, list[dict[str, Any]]]) -> None:
    """The curves of the best method, of RSCFed and of the bounds."""
    for name, colour in SHOWN.items():
        rounds = [record["round"] for record in curves[name]]
        accuracies = [record["accuracy"] for record in curves[name]]
        axes.set_prop_cycle(color=[colour])
        draw_curves(axes, [Curve(name, rounds, accuracies, [0.0] * len(rounds))], metric="accuracy")
    axes.legend([TITLES.get(name, name) for name in SHOWN], frameon=False, fontsize=9, loc="lower right")
    axes.set_ylim(bottom=0.525)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def draw_finals(axes: Axes, finals: dict[str, list[dict[str, float]]]) -> None:
    """The final accuracy of every row: a bar for the mean, a dot for each seed, the best row on top."""
    accuracies = {name: [final["accuracy"] for final in runs] for name, runs in finals.items()}
    names = sorted(accuracies, key=lambda name: fmean(accuracies[name]))
    for place, name in enumerate(names):
        mean_accuracy, colour = fmean(accuracies[name]), SHOWN.get(name, "tab:blue")
        axes.barh(place, mean_accuracy, height=0.72, color=colour, alpha=0.75 if name in SHOWN else 0.2)
        axes.plot(accuracies[name], [place] * len(accuracies[name]), "k.", markersize=4)
        axes.text(0.78, place, f"{100 * mean_accuracy:.1f}", va="center", fontsize=8)
    axes.set_yticks(range(len(names)), [TITLES.get(name, name) for name in names], fontsize=8)
    axes.set(xlabel="Final test accuracy (dots: seeds)", xlim=(0, 0.84), ylim=(-0.6, len(names) - 0.4))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.spines[["top", "right"]].set_visible(False)


def read(name: str, seed: int, file: str) -> Any:
    """A kept file of a run; the lines of metrics.jsonl as a list."""
    text = (RESULTS / "methods" / f"{name}-seed{seed}" / file).read_text()
    return [json.loads(line) for line in text.splitlines()] if file.endswith("l") else json.loads(text)


def mean_curve(name: str, seeds: list[int]) -> list[dict[str, Any]]:
    """Evaluated rounds with the mean over seeds of every number, and of every number of a list."""
    runs = [read(name, seed, "metrics.jsonl") for seed in seeds]
    return [
        {key: mean([record.get(key) for record in records]) for key in records[0]}
        for records in zip(*runs, strict=True)
    ]


def mean(values: list[Any]) -> Any:
    """The mean of numbers, or of lists of numbers, None where one of them is unknown."""
    if all(isinstance(value, list) for value in values):
        return [mean(list(parts)) for parts in zip(*values, strict=False)]
    return fmean(values) if all(isinstance(value, int | float) for value in values) else None


def as_table(rows: dict[str, Any], seeds: int) -> str:
    """Markdown, in percent, best accuracy first; the last column is the accuracy difference from RSCFed by seed."""
    base = rows["rscfed"]["accuracy"]
    lines = [
        f"Mean of the last five evaluations on the test set, in percent, over {seeds} seeds with standard deviation.",
        "",
        "| method | accuracy | AUC | calibration error | labels kept | of these right | beside RSCFed, by seed |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in sorted(rows, key=lambda name: -fmean(rows[name]["accuracy"])):
        row = rows[name]
        spread = f" ± {100 * stdev(row['accuracy']):.1f}" if seeds > 1 else ""
        quality = [percent(row.get(part)) for part in ("kept_share", "kept_accuracy")]
        beside = " ".join(f"{100 * (ours - theirs):+.1f}" for ours, theirs in zip(row["accuracy"], base, strict=True))
        parts = [
            name,
            f"{100 * fmean(row['accuracy']):.1f}{spread}",
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
