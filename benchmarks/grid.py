"""A grid of 12 cells as one command, against the same 12 cells as 12 `train` commands.

    python benchmarks/grid.py

RSCFed on a part of Fashion-MNIST: three values of beta, two of tau, two seeds. Both ways are timed as a user sees them,
from the start of the first process to the end of the last, in turns; medians. Cold: every command begins with an empty
compilation cache, as on a machine that keeps none. Shared: the twelve commands begin with one empty cache, which the
first of them fills. Warm: the cache is filled before.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

from common import publish

BETAS, TAUS, SEEDS = ("0", "100", "10000"), ("0.5", "1.0"), (0, 1)


def settings(arguments: argparse.Namespace) -> list[str]:
    """What all cells have in common."""
    rounds = ["--rounds", str(arguments.rounds), "--eval-every", "5", "--checkpoint-every", str(arguments.rounds)]
    return [*rounds, "--train-fraction", str(arguments.fraction), "--quiet"]


def call(command: list[str], cache: Path) -> None:
    """Runs a command of rscfed-jax to its end."""
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
    subprocess.run([sys.executable, "-m", "rscfed_jax", *command], env=environment, check=True, capture_output=True)


def run_grid(common: list[str], out: Path, cache: Path) -> None:
    """The twelve cells as one command."""
    axes = ["--set", f"beta={','.join(BETAS)}", "--set", f"tau={','.join(TAUS)}", "--seeds", str(len(SEEDS))]
    call(["grid", *common, *axes, "--out", str(out)], cache)


def run_separate(common: list[str], out: Path, cache: Path, *, own_cache: bool) -> None:
    """The twelve cells as twelve commands; with `own_cache`, none profits from another's compilation."""
    for number, (beta, tau, seed) in enumerate(product(BETAS, TAUS, SEEDS)):
        flags = ["--beta", beta, "--tau", tau, "--seed", str(seed), "--out", str(out / str(number))]
        call(["train", *common, *flags], cache / str(number) if own_cache else cache)


def main() -> None:
    """Measures, prints a table and publishes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="rounds of each cell (default 20)")
    parser.add_argument("--fraction", type=float, default=0.1, help="part of every client's samples (default 0.1)")
    parser.add_argument("--repeats", type=int, default=2, help="turns of each way (default 2)")
    arguments = parser.parse_args()
    common = settings(arguments)
    seconds: dict[str, list[float]] = {}
    compilations = None
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for _ in range(arguments.repeats):
            for name in ("grid", "train", "many"):
                shutil.rmtree(place / name, ignore_errors=True)
            ways = {
                "grid_cold": lambda out: run_grid(common, out, place / "grid"),
                "separate_cold": lambda out: run_separate(common, out, place / "many", own_cache=True),
                "separate_shared": lambda out: run_separate(common, out, place / "train", own_cache=False),
                "grid_warm": lambda out: run_grid(common, out, place / "grid"),
                "separate_warm": lambda out: run_separate(common, out, place / "train", own_cache=False),
            }
            for name, way in ways.items():
                out = place / "out"
                shutil.rmtree(out, ignore_errors=True)
                began = time.perf_counter()
                way(out)
                seconds.setdefault(name, []).append(time.perf_counter() - began)
                print(f"{name:<16}{seconds[name][-1]:>8.1f} s", flush=True)
                if name == "grid_cold":
                    compilations = json.loads((out / "grid.json").read_text())["compilations"]
    median = {name: statistics.median(values) for name, values in seconds.items()}
    publish(
        "grid",
        {
            "ratio_separate": median["separate_cold"] / median["grid_cold"],
            "ratio_separate_shared": median["separate_shared"] / median["grid_cold"],
            "ratio_separate_warm": median["separate_warm"] / median["grid_warm"],
            "compilations": compilations,
            "cells": len(BETAS) * len(TAUS) * len(SEEDS),
            "rounds": arguments.rounds,
            "train_fraction": arguments.fraction,
            "seconds": seconds,
        },
    )


if __name__ == "__main__":
    main()
