"""RSCFed on SVHN with one setting changed at a time, chosen on a validation part of the training samples.

    python benchmarks/svhn_settings.py            # trains what is missing in runs/svhn-settings; hours on two cores
    python benchmarks/svhn_settings.py --publish  # the table of what is finished, without training

A twentieth of the data, 300 rounds, three seeds, each with a Dirichlet partition, a labeled client and an initial model
of its own. The labeled client trains alone for the 120 rounds before, about the 700 steps of the published start.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

from common import RESULTS

import rscfed_jax as rj
from rscfed_jax import cells
from rscfed_jax.rundir import RunDirectory

SEEDS = 3
COMMON = {"dataset": "svhn", "train_fraction": 0.05, "validation": 0.1, "warmup_rounds": 120}
COMMON |= {"rounds": 300, "eval_every": 10, "checkpoint_every": 50}
# The first is what the others are compared with.
VARIANTS: dict[str, dict[str, Any]] = {
    "rscfed paper": {},
    "lambda_u 0": {"lambda_u": 0.0},
    "lambda_u 0.1": {"lambda_u": 0.1},
    "lambda_u 0.5": {"lambda_u": 0.5},
    "beta 0": {"beta": 0.0},
    "beta 1000": {"beta": 1000.0},
    "labeled share 0.8": {"labeled_share": 0.8},
    "flip": {"flip": True},
    "teacher first-selected, EMA warm-up": {"teacher_init": "first-selected", "ema_warmup": True},
    "distance sum": {"distance": "sum"},
    "no warm-up": {"warmup_rounds": 0},
    "rscfed published": {"preset": "published"},
    "fed_consist adjusted": {"method": "fed_consist"},
    "fedavg, labeled alone": {"method": "fedavg"},
}


def jobs_of(runs: Path, data_dir: str) -> list[cells.Job]:
    """A run for each variant and seed."""
    return [
        cells.Job(
            f"{name}, seed {seed}",
            rj.Config(**COMMON | {"data_dir": data_dir, "seed": seed} | settings),
            RunDirectory(runs / name.replace(",", "").replace(" ", "-") / f"seed-{seed}"),
        )
        for name, settings in VARIANTS.items()
        for seed in range(SEEDS)
    ]


def publish(jobs: list[cells.Job]) -> None:
    """A table of validation accuracy and AUC by seed, beside the difference to the first variant."""
    finals = {job.name: job.directory.read_summary()["final"] for job in jobs if job.directory and job.finished}
    lines = [
        "| variant | " + " | ".join(f"seed {seed}" for seed in range(SEEDS)) + " | mean | difference |",
        "|---|" + "---|" * (SEEDS + 2),
    ]
    first = next(iter(VARIANTS))
    for name in VARIANTS:
        mine, base = ([finals.get(f"{n}, seed {seed}") for seed in range(SEEDS)] for n in (name, first))
        if None in mine or None in base:
            continue
        values = {metric: [100 * final[metric] for final in mine] for metric in ("accuracy", "auc")}
        by_seed = [f"{accuracy:.1f} / {auc:.1f}" for accuracy, auc in zip(*values.values(), strict=True)]
        mean = " / ".join(f"{statistics.fmean(column):.1f}" for column in values.values())
        differences = [a - 100 * b["accuracy"] for a, b in zip(values["accuracy"], base, strict=True)]
        spread = f"{statistics.fmean(differences):+.1f} +- {statistics.stdev(differences):.1f}"
        lines.append(f"| {name} | " + " | ".join(by_seed) + f" | {mean} | {'' if name == first else spread} |")
    (RESULTS / "svhn").mkdir(parents=True, exist_ok=True)
    (RESULTS / "svhn" / "settings.md").write_text("\n".join(lines) + "\n")
    print(*lines, sep="\n")


def main() -> None:
    """Trains what is missing and publishes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default="data", help="where SVHN is (default data)")
    parser.add_argument("--runs", type=Path, default=Path("runs/svhn-settings"), help="where runs go")
    parser.add_argument("--publish", action="store_true", help="train nothing")
    arguments = parser.parse_args()
    jobs = jobs_of(arguments.runs, arguments.data_dir)
    if not arguments.publish:
        rj.use_all_cores()
        cells.run_groups(cells.groups_of(jobs), progress=True)
    publish(jobs)


if __name__ == "__main__":
    main()
