"""All methods side by side on the embedded Fashion-MNIST subset: same data, split, network, optimiser and start.

    python benchmarks/methods.py             # about an hour on two cores; what is finished in runs/methods is kept

Ten clients, one of them labeled, Dirichlet 0.8, half of the samples, three seeds. For each seed the labeled client
trains alone for 60 rounds; from that model every method has 60 rounds with its own numbers, local epochs included.
Writes results/methods: a directory for each run, table.md, table.json, curves.png and pseudo_labels.png.
"""

import json
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from common import RESULTS, keep_run, publish

import rscfed_jax as rj

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
    "rscfed_balanced_softmax": {"method": "rscfed", "balanced_softmax": True},
    "fixmatch_rscfed_subsets_and_distances": {"method": "fixmatch", "sampling": "subsets", "aggregator": "dma"},
    "fedavg_upper": {"method": "fedavg", "labeled_clients": 10},
}
METRICS = ("accuracy", "auc", "balanced_accuracy", "calibration_error")


def main() -> None:
    """Trains what is not there yet, then writes the table and the pictures."""
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
    folder = RESULTS / "methods"
    (folder / "table.md").write_text(as_table(rows, len(seeds)))
    curves = {name: mean_curve(name, seeds) for name in ROWS}
    title = f"Fashion-MNIST subset, 1 labeled client of 10, mean of {len(seeds)} seeds"
    rj.plot_curves(curves, folder / "curves.png", title=title)
    with_labels = {name: records for name, records in curves.items() if "kept_share" in records[-1]}
    rj.plot_pseudo_labels(with_labels, folder / "pseudo_labels.png", title=title)
    publish("methods/table", rows)


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
