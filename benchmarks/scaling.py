"""Cost per client as the federation grows: 5 to 2,000 clients, all of them trained in the round.

    python benchmarks/scaling.py

Every client holds the same number of samples, so the cost of a client's step should not change. Each size has a
process of its own, and the processes take turns; seconds are the best of five turns, memory is the peak of the process
beyond the images. On two devices an odd number of alike clients leaves one device idle for a client's time: with five
clients the best possible is 1.2 times the cost of an even number.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np
from common import publish

CLIENTS = (5, 10, 50, 100, 500, 2000)
TURNS = 5


def serve(clients: int, samples: int) -> None:
    """The process of one size: compiles, then runs rounds and prints their seconds for each line it reads."""
    import jax
    import jax.numpy as jnp

    import rscfed_jax as rj

    rj.use_all_cores()
    rng = np.random.default_rng(0)
    total = clients * samples
    few = rng.integers(0, 256, (1000, 32, 32, 1), dtype=np.uint8)
    images = few[np.arange(total) % 1000]
    labels = (np.arange(total) % 10).astype(np.int32)
    federation = rj.Federation(
        rj.Dataset(images, labels, images[:10], labels[:10], 10),
        list(np.arange(total).reshape(clients, samples)),
        [np.full(samples, client == 0) for client in range(clients)],
    )
    config = rj.Config(method="fed_consist", clients=clients)
    sim = rj.build_simulation(config, federation)
    image_bytes = sim.data.images.nbytes * sim.algorithm.axis.devices + images.nbytes
    began = time.perf_counter()
    lowered = rj.run_rounds.lower(sim.algorithm, sim.state, sim.data, sim.hyper, jnp.int32(1), capacity=50)
    program = sim.algorithm.axis.compile(lowered)
    compile_seconds = time.perf_counter() - began
    state, data, hyper = sim.state, sim.data, sim.hyper
    client_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state.clients)) / clients
    del sim, federation, images
    rounds = max(1, 100 // clients)  # a turn takes a second or more
    steps = rounds * clients * -(-samples // config.batch_size)

    def ms_per_client_step() -> float:
        nonlocal state
        began = time.perf_counter()
        state, _ = jax.block_until_ready(program(state, data, hyper, jnp.int32(rounds)))
        return (time.perf_counter() - began) / steps * 1e3

    ms_per_client_step()
    print("ready", flush=True)
    turns = []
    for _ in sys.stdin:
        turns.append(ms_per_client_step())
        print(turns[-1], flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    row = {
        "clients": clients,
        "ms_per_client_step": min(turns),
        "turns": turns,
        "peak_gib": peak / 2**30,
        "peak_beyond_images_gib": (peak - image_bytes) / 2**30,
        "client_state_bytes": client_bytes,
        "compile_seconds": compile_seconds,
    }
    print(json.dumps(row))


def measure(sizes: list[int], samples: int) -> list[dict[str, Any]]:
    """A row of figures for each number of clients."""
    processes = []
    for clients in sizes:
        command = [sys.executable, __file__, "--serve", str(clients), "--samples", str(samples)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline().strip() == "ready", f"the process of {clients} clients has failed"
        processes.append(process)
    for _ in range(TURNS):
        for process in processes:
            print("go", file=process.stdin, flush=True)
            process.stdout.readline()
    return [json.loads(process.communicate()[0]) for process in processes]


def main() -> None:
    """Measures every size, prints a table and publishes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS, help="numbers of clients")
    parser.add_argument("--samples", type=int, default=128, help="samples of each client (default 128: two steps)")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.samples)
        return
    rows = measure(arguments.clients, arguments.samples)
    print(f"{'clients':>8}{'ms per client step':>20}{'peak GiB':>10}{'beyond images':>15}{'compile s':>11}")
    for row in rows:
        print(
            f"{row['clients']:>8}{row['ms_per_client_step']:>20.2f}{row['peak_gib']:>10.2f}"
            f"{row['peak_beyond_images_gib']:>15.2f}{row['compile_seconds']:>11.1f}"
        )
    steps = [row["ms_per_client_step"] for row in rows]
    first, last = rows[0], rows[-1]
    grown = (last["peak_beyond_images_gib"] - first["peak_beyond_images_gib"]) * 2**30
    result = {
        "flatness": max(steps) / min(steps),
        "bytes_per_client": grown / (last["clients"] - first["clients"]),
        "client_state_bytes": last["client_state_bytes"],
        "peak_gib_2000": next((row["peak_beyond_images_gib"] for row in rows if row["clients"] == 2000), None),
        "sizes": rows,
    }
    publish("scaling", result)


if __name__ == "__main__":
    main()
