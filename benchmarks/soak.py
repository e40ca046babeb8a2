"""Runs killed with SIGKILL at random times and resumed until they are done, compared with a run left alone.

    python benchmarks/soak.py                 # 40 runs, some ten minutes on two cores

A run is killed once to three times. One kill in four comes at any moment of the start of a process, the others soon
after a checkpoint that is drawn from those to come: while it trains, writes, or ends. In the end the last state, best
model, metrics and summary must be those of the run that nobody killed, wall-clock fields aside.
"""

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rscfed_jax.storage.checkpoint import FILE, read_arrays

ROUNDS = 60
FLAGS = [
    *("--dataset", "synthetic:train=120,test=40,classes=3,size=16", "--image-size", "16", "--clients", "4"),
    *("--min-client-size", "5", "--subsets", "2", "--subset-size", "2", "--batch-size", "16", "--devices", "1"),
    *("--rounds", str(ROUNDS), "--eval-every", "4", "--checkpoint-every", "3", "--quiet", "--resume"),
]
WALL_CLOCK = ("seconds", "seconds_per_round", "compile_seconds")


class Outcome(NamedTuple):
    """What became of a run that was killed."""

    kills: int
    rounds_at_kill: list[int]  # the newest checkpoint then; -1 if there was none
    torn_at_kill: int  # lines of metrics.jsonl that a kill left unfinished
    torn: int  # lines in the end that are torn, double or out of order
    identical: bool


def start(out: Path, cache: Path, flags: Sequence[str] = FLAGS) -> subprocess.Popen:
    """Starts or resumes a run as a user would."""
    command = [sys.executable, "-m", "rscfed_jax", "train", *flags, "--out", str(out)]
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)


def finish(process: subprocess.Popen) -> None:
    """Waits for the end of a run that must end well."""
    _, said = process.communicate()
    if process.returncode:
        raise RuntimeError(f"the run ended with {process.returncode}: {said}")


def lines(out: Path) -> tuple[list[dict[str, Any]], int]:
    """The records of metrics.jsonl without their wall-clock fields, and the number of lines that are none."""
    records, torn = [], 0
    file = out / "metrics.jsonl"
    for line in file.read_text().splitlines(keepends=True) if file.exists() else []:
        try:
            record = json.loads(line)
            torn += not line.endswith("\n")
            records.append(_timeless(record))
        except json.JSONDecodeError:
            torn += 1
    return records, torn


def _timeless(content: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name not in WALL_CLOCK}


def outcome_of(out: Path) -> tuple[Any, ...]:
    """All that must be the same: metrics, summary, and the bytes of the last state, but for its wall clock."""
    last = out / "checkpoints" / str(newest(out))
    arrays = {
        f"{part}.{name}": (array.dtype.str, array.shape, array.tobytes())
        for part in ("state", "model", "best")
        for name, array in read_arrays(last / part / FILE).items()
        if name != "log"  # it holds seconds; its records are in metrics.jsonl as well
    }
    return last.name, lines(out)[0], _timeless(json.loads((out / "summary.json").read_text())), arrays


def newest(out: Path) -> int:
    """The round of the newest checkpoint; -1 if there is none."""
    return max((int(path.name) for path in (out / "checkpoints").glob("*") if path.name.isdecimal()), default=-1)


def wait_for_moment(process: subprocess.Popen, out: Path, life: float, rng: random.Random) -> None:
    """Returns at a random moment of a run, or when it has ended."""
    if rng.random() < 0.25:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(0, life))
        return
    target = rng.randint(min(newest(out) + 1, ROUNDS), ROUNDS)
    while process.poll() is None and newest(out) < target:
        time.sleep(0.002)
    time.sleep(rng.uniform(0, 0.1))


def kill_and_resume(out: Path, cache: Path, expected: tuple, *, kills: int, life: float, rng: random.Random) -> Outcome:
    """Kills a run at random moments, `kills` times if it lives so long, and resumes it until it is done."""
    killed, torn_at_kill, rounds = 0, 0, []
    while killed < kills:
        process = start(out, cache)
        wait_for_moment(process, out, life, rng)
        process.kill()
        process.communicate()
        if process.returncode == 0:
            break
        killed += 1
        torn_at_kill += lines(out)[1]
        rounds.append(newest(out))
    finish(start(out, cache))
    records, torn = lines(out)
    numbers = [record["round"] for record in records]
    torn += len(numbers) - len(set(numbers)) + (numbers != sorted(numbers))
    return Outcome(killed, rounds, torn_at_kill, torn, outcome_of(out) == expected)


def soak(folder: Path, *, runs: int, kills: int, workers: int, seed: int = 0) -> list[Outcome]:
    """The outcomes of `runs` runs, `workers` of them at a time."""
    cache = folder / "cache"
    finish(start(folder / "first", cache))  # fills the compilation cache
    began = time.perf_counter()
    finish(start(folder / "whole", cache))
    life = time.perf_counter() - began
    expected = outcome_of(folder / "whole")
    print(f"a run left alone takes {life:.1f} s; {workers} runs at once are killed")

    def one(number: int) -> Outcome:
        rng = random.Random(seed * 1_000 + number)
        times = rng.randint(1, kills) if runs > 1 else kills
        result = kill_and_resume(folder / f"run{number}", cache, expected, kills=times, life=life, rng=rng)
        at = ", ".join("start" if r < 0 else str(r) for r in result.rounds_at_kill)
        print(f"run {number:>2}  killed after checkpoint {at or 'never':<18} identical {result.identical}", flush=True)
        return result

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(one, range(runs)))


def main() -> None:
    """Soaks, prints a table and publishes the figures."""
    from common import publish

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--kills", type=int, default=3, help="kills of a run, at most (default 3)")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time (default 2)")
    arguments = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        outcomes = soak(Path(folder), runs=arguments.runs, kills=arguments.kills, workers=arguments.workers)
    at = [r for outcome in outcomes for r in outcome.rounds_at_kill]
    result = {
        "runs": len(outcomes),
        "kills": sum(outcome.kills for outcome in outcomes),
        "identical": sum(outcome.identical for outcome in outcomes),
        "torn_lines": sum(outcome.torn for outcome in outcomes),
        "torn_lines_at_kill": sum(outcome.torn_at_kill for outcome in outcomes),
        "kills_before_first_checkpoint": sum(r < 0 for r in at),
        "median_round_at_kill": float(np.median([r for r in at if r >= 0])) if max(at, default=-1) >= 0 else None,
        "rounds": ROUNDS,
        "minutes": round((time.perf_counter() - began) / 60, 1),
    }
    for name, value in result.items():
        print(f"{name:<32}{value}")
    publish("soak", result)


if __name__ == "__main__":
    main()
