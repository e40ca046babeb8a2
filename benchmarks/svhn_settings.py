"""RSCFed on SVHN with one setting changed at a time, chosen on a validation part of the training samples.

    python benchmarks/svhn_settings.py                   # trains what is missing in runs/svhn-settings; an hour or more
    python benchmarks/svhn_settings.py "flip" --seeds 1  # one of the variants, one seed
    python benchmarks/svhn_settings.py --publish         # the table of what is finished, without training

A twentieth of the data in batches of 16, which is as many steps in a round as a fifth of it in batches of 64 has; 200
rounds, and 1,000 for some; three seeds, each with a Dirichlet partition, a labeled client and an initial model of its
own. The labeled client trains alone for 40 rounds before, about the 700 steps of the published start. With as many
steps on a quarter of the samples a distance weighs four times as much as it does in batches of 64, so beta is a quarter
of the paper's.
"""

import argparse
import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from common import RESULTS

import rscfed_jax as rj
from rscfed_jax.runner.sweep import Cell, programs_of, run_programs
from rscfed_jax.storage.run_directory import RunDirectory

METRICS = ("accuracy", "auc")
SEEDS = 3
COMMON = {"dataset": "svhn", "train_fraction": 0.05, "batch_size": 16, "validation": 0.1, "warmup_rounds": 40}
COMMON |= {"beta": 2500.0, "eval_every": 10, "checkpoint_every": 50}
ROUNDS, MANY_ROUNDS = 200, 1000
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

LONGER = ("rscfed paper", "lambda_u 0", "lambda_u 0.005")  # have many rounds


def cells_of(runs: Path, data_dir: str) -> list[Cell]:
    """A run for each variant and seed."""
    return [
        Cell(
            f"{name}, seed {seed}",
            rj.Config(**COMMON | {"data_dir": data_dir, "seed": seed, "rounds": rounds_of(name)} | settings),
            RunDirectory(runs / name.replace(",", "").replace(" ", "-") / f"seed-{seed}"),
        )
        for name, settings in VARIANTS.items()
        for seed in range(SEEDS)
    ]


def rounds_of(name: str) -> int:
    """The rounds of a variant."""
    return MANY_ROUNDS if name in LONGER else ROUNDS


def curve_of(directory: RunDirectory) -> dict[str, list[float]]:
    """Rounds, accuracy and AUC of a run's evaluations."""
    records = directory.read_metrics() if directory.metrics.exists() else []
    return {name: [round(record[name], 5) for record in records] for name in ("round", *METRICS)}


def table(curves: dict[str, dict[str, list[float]]], names: Iterable[str], last: int) -> str:
    """Accuracy and AUC by variant and seed, means of the five evaluations up to round `last`, beside the first's."""

    def final(name: str, seed: int) -> list[float] | None:
        curve = curves.get(f"{name}, seed {seed}", {"round": []})
        if last not in curve["round"]:
            return None
        end = curve["round"].index(last) + 1
        return [100 * statistics.fmean(curve[metric][end - 5 : end]) for metric in METRICS]

    lines = [
        f"| variant, round {last} | " + " | ".join(f"seed {seed}" for seed in range(SEEDS)) + " | mean | difference |",
        "|---|" + "---|" * (SEEDS + 2),
    ]
    first = next(iter(VARIANTS))
    for name in names:
        finals = [final(name, seed) for seed in range(SEEDS)]
        there = [values for values in finals if values is not None]
        if not there:
            continue
        told = [f"{values[0]:.1f} / {values[1]:.1f}" if values else "" for values in finals]
        accuracy, auc = (statistics.fmean(values) for values in zip(*there, strict=True))
        pairs = zip(finals, (final(first, seed) for seed in range(SEEDS)), strict=True)
        gains = [
            [a - b for a, b in zip(own, base, strict=True)] for own, base in pairs if own and base and name != first
        ]
        differences = " / ".join(f"{statistics.fmean(values):+.1f}" for values in zip(*gains, strict=True))
        lines.append(f"| {name} | {' | '.join(told)} | {accuracy:.1f} / {auc:.1f} | {differences} |")
    return "\n".join(lines) + "\n"


def publish(cells: list[Cell]) -> None:
    """The curves of validation accuracy and AUC, and tables by seed with the difference to the first variant."""
    curves = {cell.name: curve_of(cell.directory) for cell in cells if cell.directory}
    tables = "\n".join([table(curves, VARIANTS, ROUNDS), table(curves, LONGER, MANY_ROUNDS)])
    (RESULTS / "svhn").mkdir(parents=True, exist_ok=True)
    there = {name: curve for name, curve in curves.items() if curve["round"]}
    (RESULTS / "svhn" / "settings.json").write_text(json.dumps({"common": COMMON, "runs": there}) + "\n")
    (RESULTS / "svhn" / "settings.md").write_text(tables)
    print(tables)


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
    cells = cells_of(arguments.runs, arguments.data_dir)
    if not arguments.publish:
        rj.use_all_cores()
        wanted = {f"{name}, seed {seed}" for name in arguments.names or VARIANTS for seed in range(arguments.seeds)}
        run_programs(programs_of([cell for cell in cells if cell.name in wanted]), progress=True)
    publish(cells)


if __name__ == "__main__":
    main()
