"""Table 1 of the RSCFed paper on all of its data, with the newer methods beside it.

    python benchmarks/table1.py svhn --data-dir data                 # trains what is missing in runs/table1
    python benchmarks/table1.py svhn rscfed balanced_labels          # some of the runs
    python benchmarks/table1.py cifar100 --data-dir data
    python benchmarks/table1.py svhn --publish                       # publishes finished runs without training

The data directory holds SVHN's .mat files and svhn_published_partition.npz, or CIFAR-100. The same command continues an
interrupted run; one of SVHN takes up to 93 minutes on one core. All runs of a data set start from one model: rounds of
the labeled client alone, as in the published code. Every method has its own constants; docs/results.md says how those
of balanced_labels were chosen.
"""

from pathlib import Path
from typing import Any

from common import RESULTS, keep_run, paper_results, read_metrics, runs_parser, smoothed

import rscfed_jax as rj
from rscfed_jax.report.tables import as_markdown

ORIGINAL = {"labeled_share": "off", "labeled_multiplier": 1.0}
UPPER = {"method": "fedavg", "labeled_clients": 10}
LARGE_CROPS = {"resize": 36}  # 32 of 36 pixels instead of 32 of 40
# Name: title, settings, and the name of the row in the paper's tables.
RUNS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "upper": ("FedAvg, all ten clients labeled (upper bound)", UPPER, "fedavg_upper"),
    "balanced_labels": ("Balanced labels", {"method": "balanced_labels"}, None),
    "balanced_labels_of_crops": (
        "Balanced labels, of random crops",
        {"method": "balanced_labels", "balanced_labels_label_view": "crop"},
        None,
    ),
    "semifl": ("SemiFL, five local epochs in a round", {"method": "semifl"}, None),
    "semianagg": ("SemiAnAgg", {"method": "semianagg"}, None),
    "cbafed": ("CBAFed", {"method": "cbafed"}, None),
    "rscfed": ("RSCFed", {"method": "rscfed"}, "rscfed"),
    "sso": ("RSCFed without distances (SSO)", {"method": "sso"}, "sso"),
    "fed_consist": ("Fed-Consist, labeled client at 50%", {"method": "fed_consist"}, "fed_consist"),
    "fed_consist_original": ("Fed-Consist, original weights", {"method": "fed_consist", **ORIGINAL}, None),
    "fedirm": ("FedIRM", {"method": "fedirm"}, "fedirm"),
    "lower": ("FedAvg, the labeled client alone (lower bound)", {"method": "fedavg"}, "fedavg_lower"),
    "upper_large_crops": ("Upper bound, larger crops", UPPER | LARGE_CROPS, None),
    "balanced_labels_large_crops": ("Balanced labels, larger crops", {"method": "balanced_labels"} | LARGE_CROPS, None),
    "balanced_labels_of_crops_large_crops": (
        "Balanced labels, of random crops, larger crops",
        {"method": "balanced_labels", "balanced_labels_label_view": "crop"} | LARGE_CROPS,
        None,
    ),
    "semianagg_large_crops": ("SemiAnAgg, larger crops", {"method": "semianagg"} | LARGE_CROPS, None),
    "rscfed_large_crops": ("RSCFed, larger crops", {"method": "rscfed"} | LARGE_CROPS, None),
}
# A constant that a method's source has for one data set, and fewer rounds of a method that trains five epochs in each.
OWN: dict[tuple[str, str], dict[str, Any]] = {
    ("svhn", "cbafed"): {"cbafed_cap": 0.9},
    ("svhn", "semifl"): {"rounds": 60},
}
ROUNDS = {"svhn": 300, "cifar100": 200}
PARTITION = {"svhn": "svhn_published_partition.npz"}
START = {"method": "fedavg", "flip": True, "rounds": 7, "eval_every": 7}
# The curves of the overview, where there are too many for one picture.
SHOWN = {"svhn": ("upper", "semianagg", "cbafed", "fed_consist", "rscfed", "lower")}
MOMENTS = (50, 100, 200, 300)


def config_of(dataset: str, data_dir: Path, settings: dict[str, Any]) -> rj.Config:
    """The settings of a run."""
    partition = {"partition_file": str(data_dir / PARTITION[dataset])} if dataset in PARTITION else {}
    return rj.Config(dataset=dataset, data_dir=str(data_dir), **partition, **settings)


def train(dataset: str, name: str, data_dir: Path, runs: Path) -> None:
    """Runs or continues one of the runs, after the one whose model all start from."""
    rj.train(config_of(dataset, data_dir, START), out=runs / dataset / "start", resume=True, progress=True)
    often = {"warmup_rounds": 0, "rounds": ROUNDS[dataset], "eval_every": 10, "checkpoint_every": 10}
    own = RUNS[name][1] | OWN.get((dataset, name), {})
    config = config_of(dataset, data_dir, often | own | {"init_from": str(runs / dataset / "start")})
    rj.train(config, out=runs / dataset / name, resume=True, progress=True)


def in_percent(numbers: dict[str, Any] | None) -> str:
    """Accuracy and AUC; nothing if there are none."""
    return "" if numbers is None else f"{100 * numbers['accuracy']:.1f} / {100 * numbers['auc']:.1f}"


def publish(dataset: str, runs: Path) -> None:
    """Copies finished runs to the results, and makes the table and the picture of all that are there."""
    out = RESULTS / "table1" / dataset
    results = paper_results()
    paper: dict[str | None, list[float]] = {"sso": results["table2_components"][dataset]["basic_sso"]}
    paper |= {row: numbers["values"] for row, numbers in results["table1_leaderboard"][dataset].items()}
    moments = [moment for moment in MOMENTS if moment <= ROUNDS[dataset]]
    rows = [["accuracy / AUC", *(f"round {moment}" for moment in moments), "paper, round 1000"]]
    curves = {}
    for name, (title, _, in_paper) in RUNS.items():
        if (runs / dataset / name / "summary.json").exists():
            keep_run(runs / dataset / name, f"table1/{dataset}/{name}")
        place = out / name
        if not (place / "summary.json").exists():
            continue
        means = smoothed(read_metrics(place))
        at_round = {mean["round"]: mean for mean in means}
        reported = " / ".join(f"{value:.2f}" for value in paper.get(in_paper, ())[:2])
        rows.append([title, *(in_percent(at_round.get(moment)) for moment in moments), reported])
        curves[name] = means
    if not curves:
        return
    out.mkdir(parents=True, exist_ok=True)
    (out / "table.md").write_text(as_markdown(rows))
    for file, names in {"curves.png": curves, "overview.png": SHOWN.get(dataset, ())}.items():
        if shown := {RUNS[name][0]: curves[name] for name in names if name in curves}:
            rj.plot_curves(shown, out / file, title=f"{dataset.upper()}, all data, one seed")
    print(as_markdown(rows))


def main() -> None:
    """Trains what is missing and publishes."""
    arguments = runs_parser(__doc__, RUNS, runs="runs/table1", first=("dataset", ROUNDS)).parse_args()
    if not arguments.publish:
        rj.use_all_cores()
        for name in arguments.names or RUNS:
            train(arguments.dataset, name, arguments.data_dir, arguments.runs)
    publish(arguments.dataset, arguments.runs)


if __name__ == "__main__":
    main()
