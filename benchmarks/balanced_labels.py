"""What each part of the method `balanced_labels` brings, on validation samples of SVHN.

    python benchmarks/balanced_labels.py              # trains what is missing in runs/balanced_labels; an hour
    python benchmarks/balanced_labels.py whole        # one of the runs
    python benchmarks/balanced_labels.py --publish    # publishes finished runs without training

The published partition, a fifth of every client's samples, a tenth of the training samples held out for validation. All
runs start from one model: 35 rounds of the labeled client alone, with a balanced softmax. The test set is not used.
The data directory holds SVHN's .mat files and svhn_published_partition.npz.
"""

import json
from pathlib import Path
from statistics import fmean
from typing import Any

from common import RESULTS, read_metrics, runs_parser

import rscfed_jax as rj
from rscfed_jax.report.tables import as_markdown

OUT = RESULTS / "balanced_labels"
COMMON = {"dataset": "svhn", "train_fraction": 0.2, "validation": 0.1, "checkpoint_every": 40}
START = {"method": "fedavg", "balanced_softmax": True, "rounds": 35, "eval_every": 35}
OURS = {"method": "balanced_labels", "resize": 36, "warmup_rounds": 0, "rounds": 80, "eval_every": 4}
UPPER = {"method": "fedavg", "labeled_clients": 10}
# Name: title and settings beside those of the whole method. Each part left out, other values, other methods.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "whole": ("the whole method, with crops of 32 of 36 pixels", {}),
    "crop": ("labels of another random crop", {"balanced_labels_label_view": "crop"}),
    "small_crops": ("crops of 32 of 40 pixels, the default", {"resize": 40}),
    "no_expected": ("labels without expected class shares", {"balanced_labels_expected": False}),
    "no_balance": ("pseudo-labels without a balanced softmax", {"balanced_labels_balanced": False}),
    "no_label_balance": ("labels without a balanced softmax", {"balanced_softmax": False}),
    "one_epoch": ("labeled clients train one epoch", {"balanced_labels_labeled_epochs": 1}),
    "half": ("labeled clients have half of the weight", {"labeled_share": 0.5}),
    "one_epoch_half": (
        "one epoch and half of the weight",
        {"balanced_labels_labeled_epochs": 1, "labeled_share": 0.5},
    ),
    "crop_one_epoch_half": (
        "one epoch, half of the weight and labels of another random crop",
        {"balanced_labels_labeled_epochs": 1, "labeled_share": 0.5, "balanced_labels_label_view": "crop"},
    ),
    "subsets": ("RSCFed's subsets and distances", {"sampling": "subsets", "aggregator": "dma"}),
    "threshold_60": ("threshold 0.6", {"balanced_labels_threshold": 0.6}),
    "threshold_95": ("threshold 0.95", {"balanced_labels_threshold": 0.95}),
    "cosine": ("learning rates that fall to zero", {"cosine_rounds": 80}),
    "fed_consist": ("Fed-Consist", {"method": "fed_consist"}),
    "fed_consist_small_crops": ("Fed-Consist, crops of 32 of 40", {"method": "fed_consist", "resize": 40}),
    "semianagg": ("SemiAnAgg", {"method": "semianagg"}),
    "semianagg_small_crops": ("SemiAnAgg, crops of 32 of 40", {"method": "semianagg", "resize": 40}),
    "upper": ("FedAvg, all ten clients labeled", UPPER),
    "upper_small_crops": ("FedAvg, all ten clients labeled, crops of 32 of 40", UPPER | {"resize": 40}),
}


def train(name: str, data_dir: Path, runs: Path) -> None:
    """Runs or continues one of the runs, after the one whose model all start from."""
    common = COMMON | {"data_dir": str(data_dir), "partition_file": str(data_dir / "svhn_published_partition.npz")}
    rj.train(rj.Config(**common | START), out=runs / "start", resume=True, progress=True)
    settings = common | OURS | RUNS[name][1] | {"init_from": str(runs / "start")}
    rj.train(rj.Config(**settings), out=runs / name, resume=True, progress=True)


def publish(runs: Path) -> None:
    """The table of finished runs and their curves."""
    shown = ("accuracy", "auc", "kept_share", "kept_accuracy")
    found = {}
    for name in RUNS:
        if (runs / name / "summary.json").exists():
            records = read_metrics(runs / name)
            found[name] = [{"round": each["round"]} | {key: each.get(key) for key in shown} for each in records]
    if not found:
        return
    finals = {
        name: {key: fmean(record[key] for record in records[-5:]) for key in shown if records[-1][key] is not None}
        for name, records in found.items()
    }
    rows = [["in percent, validation", "accuracy", "AUC", "labels kept", "of these right", "beside the whole method"]]
    for name, final in finals.items():
        cells = [f"{100 * final[key]:.1f}" if key in final else "" for key in shown]
        difference = 100 * (final["accuracy"] - finals["whole"]["accuracy"]) if "whole" in finals else 0.0
        rows.append([RUNS[name][0], *cells, "" if name == "whole" else f"{difference:+.1f}"])
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "table.md").write_text(as_markdown(rows))
    lines = [json.dumps({"name": name, "records": records}) for name, records in found.items()]
    (OUT / "records.jsonl").write_text("\n".join(lines) + "\n")
    print(as_markdown(rows))


def main() -> None:
    """Trains what is missing and publishes."""
    arguments = runs_parser(__doc__, RUNS, runs="runs/balanced_labels").parse_args()
    if not arguments.publish:
        rj.use_all_cores()
        for name in arguments.names or RUNS:
            train(name, arguments.data_dir, arguments.runs)
    publish(arguments.runs)


if __name__ == "__main__":
    main()
