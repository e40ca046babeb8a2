"""The paper's claim on real SVHN: the methods of Table 1 with the published partition, and the last row of Table 4.

    python benchmarks/svhn.py                  # trains the runs missing in runs/svhn and publishes; hours on two cores
    python benchmarks/svhn.py rscfed-paper     # one of the runs
    python benchmarks/svhn.py --publish        # publishes the finished runs without training

The data directory holds SVHN's .mat files and svhn_published_partition.npz. The same command continues an
interrupted run.

Runs of ten clients start from one model: seven rounds of the labeled client alone, as the published code does. So do
those of fifty, with a labeled client of their own that has a fifth of the samples, for five times as many rounds.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from common import RESULTS, keep_run, paper_results, read_metrics, smoothed

import rscfed_jax as rj

OUT = RESULTS / "svhn"
START = {"method": "fedavg", "flip": True}
LONG = {"warmup_rounds": 0, "eval_every": 10, "checkpoint_every": 50}
EQUAL = {**LONG, "train_fraction": 0.2, "rounds": 1000}
ORIGINAL = {"labeled_share": "off", "labeled_multiplier": 1.0}
# Name: title, settings, and the run whose model it starts from.
METHODS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "start": ("start", {**START, "rounds": 7, "eval_every": 7}, None),
    "fedavg-upper": ("FedAvg, all labeled", {**EQUAL, "method": "fedavg", "labeled_clients": 10}, "start"),
    "rscfed-paper": ("RSCFed paper", {**EQUAL, "method": "rscfed"}, "start"),
    "rscfed-published": ("RSCFed published", {**EQUAL, "method": "rscfed", "preset": "published"}, "start"),
    "sso-paper": ("Basic + SSO", {**EQUAL, "method": "sso"}, "start"),
    "fed_consist-adjusted": ("Fed-Consist adjusted", {**EQUAL, "method": "fed_consist"}, "start"),
    "fed_consist-original": ("Fed-Consist original", {**EQUAL, **ORIGINAL, "method": "fed_consist"}, "start"),
    "fedavg-lower": ("FedAvg, labeled alone", {**EQUAL, "method": "fedavg"}, "start"),
}
VARIANTS = {
    "rscfed-lambda_u_0.005": ("RSCFed, lambda_u 0.005", {**EQUAL, "method": "rscfed", "lambda_u": 0.005}, "start")
}
FIFTY = {
    "clients50-start": ("start", {**START, "clients": 50, "rounds": 35, "eval_every": 35}, None),
    "clients50-rscfed-paper": (
        "RSCFed paper, 50 clients",
        {**EQUAL, "method": "rscfed", "clients": 50},
        "clients50-start",
    ),
    "clients50-fed_consist-adjusted": (
        "Fed-Consist adjusted, 50 clients",
        {**EQUAL, "method": "fed_consist", "clients": 50},
        "clients50-start",
    ),
}
FULL = {"full-rscfed-paper": ("RSCFed paper, all data", {**LONG, "method": "rscfed", "rounds": 300}, "start")}
ALL = METHODS | VARIANTS | FIFTY | FULL
# The upper bound is too far above the others to be compared in a picture.
PICTURES = {
    "curves.png": ("ten clients", [name for name in METHODS if name != "fedavg-upper"]),
    "presets.png": ("settings of RSCFed", ["rscfed-paper", "rscfed-published", *VARIANTS]),
    "clients50.png": ("50 clients", list(FIFTY)),
}
MOMENTS = (100, 300, 1000)  # rounds at which methods are compared
LABELED_WEIGHTS = (10, 20, 90)  # and sums over rounds of the labeled client's weight in the global model
PAPER = {
    "fedavg-upper": ("table1_leaderboard", "svhn", "fedavg_upper", "values"),
    "rscfed-paper": ("table1_leaderboard", "svhn", "rscfed", "values"),
    "rscfed-published": ("table1_leaderboard", "svhn", "rscfed", "values"),
    "sso-paper": ("table2_components", "svhn", "basic_sso"),
    "fed_consist-adjusted": ("table1_leaderboard", "svhn", "fed_consist", "values"),
    "fedavg-lower": ("table1_leaderboard", "svhn", "fedavg_lower", "values"),
    "clients50-rscfed-paper": ("table4_client_count", "50", "rscfed"),
    "clients50-fed_consist-adjusted": ("table4_client_count", "50", "fed_consist"),
    "full-rscfed-paper": ("table1_leaderboard", "svhn", "rscfed", "values"),
}


def train(name: str, data_dir: Path, runs: Path) -> None:
    """Runs or continues one of the runs, after the one whose model it starts from."""
    _, settings, start = ALL[name]
    if start:
        train(start, data_dir, runs)
        settings = {**settings, "init_from": str(runs / start)}
    if "clients" not in settings:
        settings = {**settings, "partition_file": str(data_dir / "svhn_published_partition.npz")}
    config = rj.Config(dataset="svhn", data_dir=str(data_dir), **settings)
    rj.train(config, out=runs / name, resume=True, progress=True)


def labeled_weights(means: list[dict[str, Any]], config: rj.Config, labeled: int) -> list[float]:
    """The sum over rounds of the labeled client's expected weight in the global model, up to each evaluation."""
    drawn = config.subset_size / config.clients if config.method in ("rscfed", "sso") else 1.0
    total, sums, last, weight = 0.0, [], 0, 0.0
    for record in means:
        weight = record["client_weights"].get(str(labeled), weight)  # not told if no subset has drawn it
        total += (record["round"] - last) * drawn * weight
        last = record["round"]
        sums.append(total)
    return sums


def cell_of(mean: dict[str, Any] | None, *, with_round: bool = False) -> str:
    """Accuracy and AUC of an evaluation in percent; nothing if the run did not get there."""
    if mean is None:
        return ""
    values = f"{100 * mean['accuracy']:.1f} / {100 * mean['auc']:.1f}"
    return f"{values} (round {mean['round']})" if with_round else values


def publish(runs: Path) -> None:
    """Copies what is finished to the results, and makes the tables and the pictures."""
    known = paper_results()
    by_round = [
        "| run | " + " | ".join(f"round {moment}" for moment in MOMENTS) + " | best (oracle) | paper |",
        "|---|" + "---|" * (len(MOMENTS) + 2),
    ]
    by_weight = [
        "| run | " + " | ".join(f"labeled weight {weight}" for weight in LABELED_WEIGHTS) + " |",
        "|---|" + "---|" * len(LABELED_WEIGHTS),
    ]
    curves = {}
    for name, (title, _, start) in ALL.items():
        if not (runs / name / "summary.json").exists():
            continue
        keep_run(runs / name, f"svhn/{name}")
        if start is None:
            continue
        records = read_metrics(runs / name)
        means = smoothed(records)
        at_round = {mean["round"]: mean for mean in means}
        cells = [cell_of(at_round.get(moment)) for moment in MOMENTS]
        best = max(records, key=lambda record: record["accuracy"])
        cells.append(f"{100 * best['accuracy']:.1f} in round {best['round']}")
        values = known
        for key in PAPER.get(name, ()):
            values = values[key]
        cells.append(" / ".join(f"{value:.1f}" for value in values[:2]) if name in PAPER else "")
        by_round.append(f"| {title} | " + " | ".join(cells) + " |")
        config = rj.Config(**json.loads((runs / name / "config.json").read_text()))
        curves[name] = means
        if config.labeled_clients == 1 and name not in FULL:
            held = json.loads((runs / name / "partition.json").read_text())["labels"]
            pairs = list(zip(labeled_weights(means, config, held.index(max(held))), means, strict=True))
            reached = [next((mean for total, mean in pairs if total >= weight), None) for weight in LABELED_WEIGHTS]
            by_weight.append(f"| {title} | " + " | ".join(cell_of(mean, with_round=True) for mean in reached) + " |")
    tables = "\n".join([*by_round, "", *by_weight]) + "\n"
    (OUT / "table.md").write_text(tables)
    for file, (what, names) in PICTURES.items():
        if there := {ALL[name][0]: curves[name] for name in names if name in curves}:
            rj.plot_curves(there, OUT / file, title=f"SVHN, {what}, a fifth of the data, one seed")
    print(tables)


def main() -> None:
    """Trains what is missing and publishes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="RUN", help=f"default all: {', '.join(ALL)}")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="where SVHN is (default data)")
    parser.add_argument("--runs", type=Path, default=Path("runs/svhn"), help="where runs go (default runs/svhn)")
    parser.add_argument("--publish", action="store_true", help="train nothing")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(ALL):
        parser.error(f"RUN {min(unknown)}: must be one of {', '.join(ALL)}")
    if not arguments.publish:
        rj.use_all_cores()
        for name in arguments.names or ALL:
            train(name, arguments.data_dir, arguments.runs)
    publish(arguments.runs)


if __name__ == "__main__":
    main()
