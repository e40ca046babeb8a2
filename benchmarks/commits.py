"""The round time of two source trees, side by side in one run: is a change faster or slower?

    git worktree add /tmp/old HEAD~1
    python benchmarks/commits.py /tmp/old .      # about two minutes on two cores

Each tree lives in a process of its own, which compiles the default round (Fashion-MNIST, RSCFed, all cores) for a
part of every client's samples. The processes take turns, and the one that begins changes from turn to turn, so that a
busy machine slows both alike. Times are medians over the turns; a ratio below 1 means that the new tree is faster.
Only public names are used that every version since 0.1 has.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path


def serve(fraction: float, rounds: int) -> None:
    """The process of one tree: runs rounds for each line it reads and prints the seconds of one round."""
    import rscfed_jax as rj

    rj.use_all_cores()
    import jax
    import jax.numpy as jnp

    config = rj.Config(train_fraction=fraction)
    sim = rj.build_simulation(config, rj.build_federation(config))
    lowered = rj.run_rounds.lower(sim.algorithm, sim.state, sim.data, sim.hyper, jnp.int32(1), capacity=rounds)
    program = sim.algorithm.axis.compile(lowered)

    def seconds() -> float:
        state = jax.block_until_ready(jax.tree.map(jnp.copy, sim.state))  # every turn runs the same rounds
        began = time.perf_counter()
        jax.block_until_ready(program(state, sim.data, sim.hyper, jnp.int32(rounds)))
        return (time.perf_counter() - began) / rounds

    seconds()
    print(rj.__file__, flush=True)
    for _ in sys.stdin:
        print(seconds(), flush=True)


def start(tree: Path, arguments: argparse.Namespace) -> subprocess.Popen:
    """Starts the process of a tree and waits until it has compiled."""
    command = [sys.executable, __file__, str(tree), str(tree), "--serve"]
    command += ["--rounds", str(arguments.rounds), "--fraction", str(arguments.fraction)]
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    served = process.stdout.readline().strip()
    if Path(served).parent.parent != tree:
        raise SystemExit(f"{tree} was not measured: its process answered {served or 'nothing'}")
    return process


def main() -> None:
    """Measures both trees in turns and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, metavar="OLD_TREE", help="directory that holds the package rscfed_jax")
    parser.add_argument("new", type=Path, metavar="NEW_TREE", help="the one to compare with it")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of a turn (default 3)")
    parser.add_argument("--repeats", type=int, default=24, help="turns of each tree (default 24)")
    parser.add_argument("--fraction", type=float, default=0.1, help="part of every client's samples (default 0.1)")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.fraction, arguments.rounds)
        return
    trees = {"old": arguments.old.resolve(), "new": arguments.new.resolve()}
    processes = {name: start(tree, arguments) for name, tree in trees.items()}
    seconds: dict[str, list[float]] = {name: [] for name in trees}
    for turn in range(arguments.repeats):
        for name in trees if turn % 2 == 0 else reversed(trees):
            print("go", file=processes[name].stdin, flush=True)
            seconds[name].append(float(processes[name].stdout.readline()))
    for process in processes.values():
        process.communicate()
    median = {name: statistics.median(times) for name, times in seconds.items()}
    for name, tree in trees.items():
        print(f"{name}: {median[name]:.4f} s a round ({min(seconds[name]):.4f} to {max(seconds[name]):.4f})  {tree}")
    result = {"old_seconds": median["old"], "new_seconds": median["new"], "ratio": median["new"] / median["old"]}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
