"""What clients of different sizes cost: the ISIC sizes (231 to 2,567 samples) against a uniform federation.

    python benchmarks/ragged.py

The ideal is the number of steps times the step time of a federation of equal clients with as many steps in all. Both
are measured in one process, interleaved; medians.
"""

import argparse
import statistics
import time
from typing import Any

import numpy as np
from common import publish

ISIC_SIZES = (589, 2567, 583, 231, 348, 1204, 567, 939, 484, 500)
BATCH = 64


def make_round(sizes: list[int]) -> Any:
    """A function that trains every client of a federation once and returns the seconds."""
    import jax
    import jax.numpy as jnp

    import rscfed_jax as rj

    total = sum(sizes)
    images = np.random.default_rng(0).integers(0, 256, (total, 32, 32, 3), dtype=np.uint8)
    labels = (np.arange(total) % 10).astype(np.int32)
    federation = rj.Federation(
        rj.Dataset(images, labels, images[:10], labels[:10], 10),
        np.split(np.arange(total), np.cumsum(sizes)[:-1]),
        [np.full(size, client == 0) for client, size in enumerate(sizes)],
    )
    config = rj.Config(method="fed_consist", clients=len(sizes), batch_size=BATCH)
    sim = rj.build_simulation(config, federation)
    lowered = rj.run_rounds.lower(sim.algorithm, sim.state, sim.data, sim.hyper, jnp.int32(1), capacity=1)
    program = sim.algorithm.axis.compile(lowered)

    def run() -> float:
        state = jax.block_until_ready(jax.tree.map(jnp.copy, sim.state))
        began = time.perf_counter()
        jax.block_until_ready(program(state, sim.data, sim.hyper, jnp.int32(1)))
        return time.perf_counter() - began

    run()
    return run


def main() -> None:
    """Measures, prints a table and publishes the overhead."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9, help="rounds of each federation (default 9)")
    arguments = parser.parse_args()
    import rscfed_jax as rj

    rj.use_all_cores()
    steps = sum(-(-size // BATCH) for size in ISIC_SIZES)
    uniform_steps = -(-steps // len(ISIC_SIZES))
    rounds = {"ragged": make_round(list(ISIC_SIZES)), "uniform": make_round([uniform_steps * BATCH] * len(ISIC_SIZES))}
    counts = {"ragged": steps, "uniform": uniform_steps * len(ISIC_SIZES)}
    seconds: dict[str, list[float]] = {name: [] for name in rounds}
    for _ in range(arguments.repeats):
        for name, run in rounds.items():
            seconds[name].append(run())
    per_step = {name: statistics.median(times) / counts[name] for name, times in seconds.items()}
    for name in rounds:
        print(f"{name:<10}{counts[name]:>6} steps{per_step[name] * 1e3:>8.2f} ms per step")
    result = {
        "overhead": per_step["ragged"] / per_step["uniform"],
        "ms_per_step": {name: value * 1e3 for name, value in per_step.items()},
        "seconds": {name: [round(t, 4) for t in times] for name, times in seconds.items()},
    }
    publish("ragged", result)


if __name__ == "__main__":
    main()
