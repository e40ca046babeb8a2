"""The work that every system does: the clients' images, and the numbers of local training. NumPy only."""

import functools
import os
import sys
import time
from collections.abc import Iterator

import numpy as np

BATCH, RATE, MOMENTUM, DECAY, CLASSES = 64, 0.03, 0.9, 5e-4, 10
MEAN, SCALE = 127.5, 1 / 73.9  # of uniformly random bytes


@functools.cache
def client_samples(client: int, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """A client's images [n, 32, 32, 3] as bytes, and its labels [n]."""
    rng = np.random.default_rng(client)
    return rng.integers(0, 256, (samples, 32, 32, 3), dtype=np.uint8), rng.integers(0, CLASSES, samples)


def setting() -> tuple[int, int, int]:
    """What the worker was started with: the number of clients, of samples of each, and of rounds in a turn."""
    clients, samples, rounds = map(int, sys.argv[1:4])
    return clients, samples, rounds


def turns() -> Iterator[int]:
    """Yields the rounds to run for each line of stdin, and answers with the seconds that one of them took."""
    with os.fdopen(int(sys.argv[4]), "w") as answers:
        for line in sys.stdin:
            rounds = int(line)
            began = time.perf_counter()
            yield rounds
            print((time.perf_counter() - began) / rounds, file=answers, flush=True)
