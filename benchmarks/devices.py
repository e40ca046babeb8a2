"""One RSCFed round on one host device and on two: what it brings to give each core clients of its own.

    python benchmarks/devices.py

Ten clients with the published SVHN sizes times --scale, M=3, K=5, batch 64. Each number of devices has a process of
its own, and one device may use both cores inside an operation. Rounds are interleaved; medians.
"""

import argparse
import itertools
import statistics
import subprocess
import sys
import time

import numpy as np
from common import SVHN_SIZES, publish

DEVICES = (1, 2)


def serve(devices: int, scale: float) -> None:
    """The process of one number of devices: runs a round for each line it reads and prints its seconds."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_num_cpu_devices", devices)
    import rscfed_jax as rj

    sizes = [max(1, round(size * scale)) for size in SVHN_SIZES]
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (sum(sizes), 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, sum(sizes)).astype(np.int32)
    starts = np.cumsum([0, *sizes])
    federation = rj.Federation(
        rj.Dataset(images, labels, images[:10], labels[:10], 10),
        [np.arange(a, b) for a, b in itertools.pairwise(starts)],
        [np.full(size, client == 0) for client, size in enumerate(sizes)],
    )
    sim = rj.build_simulation(rj.Config(devices=devices), federation)
    lowered = rj.run_rounds.lower(sim.algorithm, sim.state, sim.data, sim.hyper, jnp.int32(1), capacity=1)
    program = sim.algorithm.axis.compile(lowered)
    print("ready", flush=True)
    for _ in sys.stdin:
        state = jax.block_until_ready(jax.tree.map(jnp.copy, sim.state))
        began = time.perf_counter()
        jax.block_until_ready(program(state, sim.data, sim.hyper, jnp.int32(1)))
        print(time.perf_counter() - began, flush=True)


def main() -> None:
    """Measures, prints a table and publishes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=0.1, help="times the SVHN client sizes (default 0.1)")
    parser.add_argument("--repeats", type=int, default=11, help="rounds of each (default 11)")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.scale)
        return
    servers = []
    for devices in DEVICES:
        command = [sys.executable, __file__, "--serve", str(devices), "--scale", str(arguments.scale)]
        servers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert servers[-1].stdout.readline().strip() == "ready", f"the process with {devices} devices has failed"
    seconds: dict[int, list[float]] = {devices: [] for devices in DEVICES}
    for turn in range(arguments.repeats + 1):
        for devices, server in zip(DEVICES, servers, strict=True):
            print("go", file=server.stdin, flush=True)
            taken = float(server.stdout.readline())
            if turn > 0:  # the first is for warming up
                seconds[devices].append(taken)
    for server in servers:
        server.communicate()
    median = {devices: statistics.median(values) for devices, values in seconds.items()}
    for devices, value in median.items():
        print(f"{devices} device{'s' if devices > 1 else ' '}: {value:.3f} s a round")
    result = {"speedup": median[1] / median[2], "seconds_1": median[1], "seconds_2": median[2]}
    publish("devices", result | {"scale": arguments.scale, "all_seconds": seconds})


if __name__ == "__main__":
    main()
