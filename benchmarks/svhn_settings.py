"""RSCFed on SVHN with one setting changed at a time, chosen on a validation part of the training samples.

    python benchmarks/svhn_settings.py                   # trains what is missing in runs/svhn-settings; an hour or more
    python benchmarks/svhn_settings.py "flip" --seeds 1  # one of the variants, one seed
    python benchmarks/svhn_settings.py --publish         # the table of what is finished, without training

A twentieth of the data in batches of 16, which is as many steps in a round as a fifth of it in batches of 64 has; 200
rounds, three seeds, each with a Dirichlet partition, a labeled client and an initial model of its own. The labeled
client trains alone for 40 rounds before, about the 700 steps of the published start. With as many steps on a quarter
of the samples a distance weighs four times as much as it does in batches of 64, so beta is a quarter of the paper's.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from common import RESULTS

import rscfed_jax as rj
from rscfed_jax import cells
from rscfed_jax.rundir import RunDirectory

SEEDS = 3
COMMON = {"dataset": "svhn", "train_fraction": 0.05, "batch_size": 16, "validation": 0.1, "warmup_rounds": 40}
COMMON |= {"beta": 2500.0, "rounds": 200, "eval_every": 10, "checkpoint_every": 50}
# The first is what the others are compared with.
VARIANTS: dict[str, dict[str, Any]] = {
    "rscfed paper": {},
    "lambda_u 0": {"lambda_u": 0.0},
    "lambda_u 0.005": {"lambda_u": 0.005},
    "lambda_u 0.1": {"lambda_u": 0.1},
    "lambda_u 0.5": {"lambda_u": 0.5},
    "beta 0": {"beta": 0.0},
    "beta 250": {"beta": 250.0},
    "labeled share 0.8": {"labeled_share": 0.8},
    "flip": {"flip": True},
    "teacher first-selected, EMA warm-up": {"teacher_init": "first-selected", "ema_warmup": True},
    "ema 0.99": {"ema": 0.99},
    "ema 0.99, lambda_u 0.1": {"ema": 0.99, "lambda_u": 0.1},
    "no warm-up": {"warmup_rounds": 0},
    "no warm-up, lambda_u 0.005": {"warmup_rounds": 0, "lambda_u": 0.005},
    "rscfed published": {"preset": "published", "beta_labeled": 25.0},
    "rscfed published, no flip": {"preset": "published", "beta_labeled": 25.0, "flip": False},
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


def _curve(directory: RunDirectory) -> dict[str, list[float]]:
    """Rounds, accuracy and AUC of a run's evaluations."""
    records = directory.read_metrics()
    return {name: [round(record[name], 5) for record in records] for name in ("round", "accuracy", "auc")}


def publish(jobs: list[cells.Job]) -> None:
    """The curves of validation accuracy and AUC, and a table by seed with the difference to the first variant."""
    finals = {job.name: job.directory.read_summary()["final"] for job in jobs if job.directory and job.finished}
    lines = [
        "| variant | " + " | ".join(f"seed {seed}" for seed in range(SEEDS)) + " | mean | difference |",
        "|---|" + "---|" * (SEEDS + 2),
    ]
    first = next(iter(VARIANTS))
    for name in VARIANTS:
        of_seed = {seed: finals[f"{name}, seed {seed}"] for seed in range(SEEDS) if f"{name}, seed {seed}" in finals}
        if not of_seed:
            continue
        cell = {seed: f"{100 * final['accuracy']:.1f} / {100 * final['auc']:.1f}" for seed, final in of_seed.items()}
        means = [100 * statistics.fmean(final[metric] for final in of_seed.values()) for metric in ("accuracy", "auc")]
        base = {seed: finals[f"{first}, seed {seed}"] for seed in of_seed if f"{first}, seed {seed}" in finals}
        gains = [100 * (of_seed[seed]["accuracy"] - base[seed]["accuracy"]) for seed in base if name != first]
        difference = f"{statistics.fmean(gains):+.1f}" if gains else ""
        if len(gains) > 1:
            difference += f" +- {statistics.stdev(gains):.1f}"
        by_seed = " | ".join(cell.get(seed, "") for seed in range(SEEDS))
        lines.append(f"| {name} | {by_seed} | {means[0]:.1f} / {means[1]:.1f} | {difference} |")
    (RESULTS / "svhn").mkdir(parents=True, exist_ok=True)
    curves = {job.name: _curve(job.directory) for job in jobs if job.directory and job.finished}
    (RESULTS / "svhn" / "settings.json").write_text(json.dumps({"common": COMMON, "runs": curves}) + "\n")
    (RESULTS / "svhn" / "settings.md").write_text("\n".join(lines) + "\n")
    print(*lines, sep="\n")


def main() -> None:
    """Trains what is missing and publishes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="VARIANT", help=f"default all: {'; '.join(VARIANTS)}")
    parser.add_argument("--data-dir", default="data", help="where SVHN is (default data)")
    parser.add_argument("--runs", type=Path, default=Path("runs/svhn-settings"), help="where runs go")
    parser.add_argument("--seeds", type=int, choices=range(1, SEEDS + 1), default=SEEDS, help=f"default {SEEDS}")
    parser.add_argument("--publish", action="store_true", help="train nothing")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(VARIANTS):
        parser.error(f"VARIANT {min(unknown)}: must be one of {'; '.join(VARIANTS)}")
    jobs = jobs_of(arguments.runs, arguments.data_dir)
    if not arguments.publish:
        rj.use_all_cores()
        wanted = {f"{name}, seed {seed}" for name in arguments.names or VARIANTS for seed in range(arguments.seeds)}
        cells.run_groups(cells.groups_of([job for job in jobs if job.name in wanted]), progress=True)
    publish(jobs)


if __name__ == "__main__":
    main()
