"""The paper's claim on real SVHN: the methods of Table 1 with the published partition, and the last row of Table 4.

    python benchmarks/svhn.py                  # trains what is missing in runs/svhn and publishes; hours on two cores
    python benchmarks/svhn.py rscfed-paper     # one of the runs
    python benchmarks/svhn.py --publish        # only what is finished, without training

The data directory holds SVHN's .mat files and svhn_published_partition.npz. A run that is cut off goes on with
the same command.

Runs of ten clients start from one model: seven rounds of the labeled client alone, as the published code does. So do
those of fifty, with a labeled client of their own that has a fifth of the samples, for five times as many rounds.
"""

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any

from common import RESULTS, keep_run

import rscfed_jax as rj
from rscfed_jax.paper.tables import paper_results

OUT = RESULTS / "svhn"
START = {"method": "fedavg", "flip": True}
LONG = {"warmup_rounds": 0, "eval_every": 10, "checkpoint_every": 50}
EQUAL = {**LONG, "train_fraction": 0.2, "rounds": 1000}
ORIGINAL = {"labeled_share": "off", "labeled_multiplier": 1.0}
# Name: title, settings, and the run whose model it starts from.
TEN: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "start": ("start", {**START, "rounds": 7, "eval_every": 7}, None),
    "fedavg-upper": ("FedAvg, all labeled", {**EQUAL, "method": "fedavg", "labeled_clients": 10}, "start"),
    "rscfed-paper": ("RSCFed paper", {**EQUAL, "method": "rscfed"}, "start"),
    "rscfed-published": ("RSCFed published", {**EQUAL, "method": "rscfed", "preset": "published"}, "start"),
    "sso-paper": ("Basic + SSO", {**EQUAL, "method": "sso"}, "start"),
    "fed_consist-adjusted": ("Fed-Consist adjusted", {**EQUAL, "method": "fed_consist"}, "start"),
    "fed_consist-original": ("Fed-Consist original", {**EQUAL, **ORIGINAL, "method": "fed_consist"}, "start"),
    "fedavg-lower": ("FedAvg, labeled alone", {**EQUAL, "method": "fedavg"}, "start"),
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
ALL = TEN | FIFTY | FULL
MOMENTS = (100, 300, 1000)  # rounds at which methods are compared
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


def metric_at(records: list[dict[str, Any]], moment: int, metric: str) -> float | None:
    """The mean of the last five evaluations up to a round, in percent; None if the run did not get there."""
    if records[-1]["round"] < moment:
        return None
    return 100 * fmean([record[metric] for record in records if 0 < record["round"] <= moment][-5:])


def smoothed(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each evaluation as the mean of the last five up to it, for a picture of many noisy curves."""
    return [
        {"round": record["round"]}
        | {name: fmean(past[name] for past in records[max(0, i - 4) : i + 1]) for name in ("accuracy", "auc")}
        for i, record in enumerate(records)
    ]


def publish(runs: Path) -> None:
    """Copies what is finished to the results, and makes the table and the curves."""
    known = paper_results()
    lines = [
        "| run | " + " | ".join(f"round {moment}" for moment in MOMENTS) + " | best (oracle) | paper |",
        "|---|" + "---|" * (len(MOMENTS) + 2),
    ]
    curves = {}
    for name, (title, _, start) in ALL.items():
        if not (runs / name / "summary.json").exists():
            continue
        keep_run(runs / name, f"svhn/{name}")
        if start is None:
            continue
        records = [json.loads(line) for line in (runs / name / "metrics.jsonl").read_text().splitlines()]
        cells = []
        for moment in MOMENTS:
            values = [metric_at(records, moment, metric) for metric in ("accuracy", "auc")]
            cells.append(" / ".join(f"{value:.1f}" for value in values if value is not None))
        best = max(records, key=lambda record: record["accuracy"])
        cells.append(f"{100 * best['accuracy']:.1f} in round {best['round']}")
        values = known
        for key in PAPER.get(name, ()):
            values = values[key]
        cells.append(" / ".join(f"{value:.1f}" for value in values[:2]) if name in PAPER else "")
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
        if name in TEN:
            curves[title] = smoothed(records)
    (OUT / "table.md").write_text("\n".join(lines) + "\n")
    rj.plot_curves(curves, OUT / "curves.png", title="SVHN, published partition, a fifth of the data, one seed")
    print(*lines, sep="\n")


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
