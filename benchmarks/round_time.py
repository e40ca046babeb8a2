"""One RSCFed round: this project against eager PyTorch, and against itself with a plain convolution.

    python benchmarks/round_time.py              # needs torch (CPU build is enough) and pillow

Ten clients with the published SVHN sizes times --scale, one labeled, M=3, K=5, batch 64, augmentation included. Each
contender lives in a process of its own and all train the same subsets. Rounds are interleaved and repeated; medians.
`torch` is as lean as it could be made, `published_pipeline` the same loop with per-image Pillow transforms and a
DataLoader, `plain_vmap` this project with the plain `vmap` of XLA's convolution.
"""

import argparse
import importlib.util
import itertools
import json
import multiprocessing
import statistics
import time
from typing import Any

import numpy as np
from common import SVHN_SIZES, publish

MFLOP = {True: 217.0, False: 304.0}  # of a labeled and an unlabeled step of 64 images, without gradients for the images
BATCH, SUBSETS, SUBSET_SIZE = 64, 3, 5
CONTENDERS = ("ours", "torch", "published_pipeline", "plain_vmap")


def make_images(scale: float) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Images [n, 32, 32, 3] and labels of each client."""
    rng = np.random.default_rng(0)
    sizes = [max(1, round(size * scale)) for size in SVHN_SIZES]
    return (
        [rng.integers(0, 256, (size, 32, 32, 3), dtype=np.uint8) for size in sizes],
        [rng.integers(0, 10, size) for size in sizes],
    )


def make_ours(scale: float, *, plain: bool) -> Any:
    """A function that runs round 0 of this project and returns nothing."""
    import jax
    import jax.numpy as jnp

    import rscfed_jax as rj

    images, labels = make_images(scale)
    if not plain:
        rj.use_all_cores()
    config = rj.Config(conv="plain" if plain else "auto", chunk=SUBSETS * SUBSET_SIZE if plain else "auto", rounds=1)
    starts = np.cumsum([0, *map(len, images)])
    federation = rj.Federation(
        rj.Dataset(np.concatenate(images), np.concatenate(labels), images[0][:10], labels[0][:10], 10),
        [np.arange(a, b) for a, b in itertools.pairwise(starts)],
        [np.full(len(part), client == 0) for client, part in enumerate(images)],
    )
    sim = rj.build_simulation(config, federation)
    lowered = rj.run_rounds.lower(sim.algorithm, sim.state, sim.data, sim.hyper, jnp.int32(1), capacity=1)
    program = sim.algorithm.axis.compile(lowered)

    def round_zero(_: list[list[int]]) -> tuple[float, list[list[int]]]:
        state = jax.block_until_ready(jax.tree.map(jnp.copy, sim.state))
        began = time.perf_counter()
        _, report = jax.block_until_ready(program(state, sim.data, sim.hyper, jnp.int32(1)))
        return time.perf_counter() - began, report.subsets[0].tolist()

    return round_zero


def make_torch(scale: float, *, published: bool) -> Any:
    """A function that runs a round of the PyTorch loop."""
    from torch_round import LeanFeed, PublishedFeed, TorchRound

    from rscfed_jax.data.resize import resize

    images, labels = make_images(scale)
    pixels = np.concatenate(images).astype(np.float32).reshape(-1, 3)
    mean, std = pixels.mean(0), pixels.std(0)
    feeds = [
        PublishedFeed(x, y, mean, std, BATCH) if published else LeanFeed(resize(x, 40), y, mean, std, BATCH)
        for x, y in zip(images, labels, strict=True)
    ]
    federation = TorchRound(feeds, [client == 0 for client in range(len(feeds))], BATCH)

    def one_round(subsets: list[list[int]]) -> tuple[float, list[list[int]]]:
        began = time.perf_counter()
        federation.run(subsets)
        return time.perf_counter() - began, subsets

    return one_round


def gemm_speed() -> float:
    """FLOP/s of a float32 matmul in NumPy on all cores, the best of some."""
    a = np.random.default_rng(0).random((1500, 1500), dtype=np.float32)
    best = 1e9
    for _ in range(8):
        began = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - began)
    return 2 * 1500**3 / best


def serve(pipe: Any, name: str, scale: float) -> None:
    """Runs a contender's rounds on request."""
    if name in ("ours", "plain_vmap"):
        run = make_ours(scale, plain=name == "plain_vmap")
    else:
        run = make_torch(scale, published=name == "published_pipeline")
    pipe.send("ready")
    while (subsets := pipe.recv()) is not None:
        pipe.send(run(subsets))


def main() -> None:
    """Measures, prints a table and publishes the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=0.1, help="part of the SVHN client sizes (default 0.1)")
    parser.add_argument("--repeats", type=int, default=7, help="rounds of each contender (default 7)")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=CONTENDERS, help="contenders to run")
    arguments = parser.parse_args()
    if not importlib.util.find_spec("torch"):
        print("torch is not installed: its contenders are left out, and the kept result stays as it is")
        arguments.only = [name for name in arguments.only if name in ("ours", "plain_vmap")]
    context = multiprocessing.get_context("spawn")
    workers = {}
    for name in arguments.only:
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, name, arguments.scale), daemon=True)
        process.start()
        ours.recv()
        workers[name] = ours
    workers["ours"].send([])
    _, subsets = workers["ours"].recv()  # warms up, and tells whom round 0 draws
    seconds: dict[str, list[float]] = {name: [] for name in workers}
    speeds = []
    for repeat in range(arguments.repeats + 1):
        speeds.append(gemm_speed())
        for name, pipe in workers.items():
            pipe.send(subsets)
            took, _ = pipe.recv()
            if repeat > 0:  # the first warms up
                seconds[name].append(took)
    for pipe in workers.values():
        pipe.send(None)

    steps = [
        (client == 0, -(-max(1, round(SVHN_SIZES[client] * arguments.scale)) // BATCH)) for s in subsets for client in s
    ]
    flop = sum(MFLOP[labeled] * count for labeled, count in steps) * 1e6
    median = {name: statistics.median(times) for name, times in seconds.items()}
    count = sum(number for _, number in steps)
    print(f"{'contender':<20}{'median s':>10}{'min s':>10}{'ms per client step':>20}{'times ours':>12}")
    for name, times in seconds.items():
        step = median[name] / count * 1e3
        print(f"{name:<20}{median[name]:>10.3f}{min(times):>10.3f}{step:>20.2f}{median[name] / median['ours']:>12.2f}")
    result = {f"ratio_{name}": median[name] / median["ours"] for name in median if name != "ours"}
    result["gemm_fraction"] = flop / median["ours"] / statistics.median(speeds)
    result["ms_per_client_step"] = median["ours"] / count * 1e3
    result |= {"gemm_gflops": statistics.median(speeds) / 1e9, "client_steps": count, "scale": arguments.scale}
    result["seconds"] = {name: [round(t, 4) for t in times] for name, times in seconds.items()}
    if len(median) == len(CONTENDERS):
        publish("round_time", result)
    else:  # the kept result compares all of them
        print(json.dumps(result))


if __name__ == "__main__":
    main()
