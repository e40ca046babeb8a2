"""Seconds from `rscfed-jax train` to the end of round 1, with an empty and with a filled compilation cache.

python benchmarks/startup.py
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import publish


def start(cache: Path, out: Path) -> float:
    """Seconds of a run of one round, as a user would type it."""
    command = [sys.executable, "-m", "rscfed_jax", "train", "--rounds", "1", "--quiet", "--out", str(out)]
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)})
    return time.perf_counter() - began


def main() -> None:
    """Measures, prints a table and publishes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="starts of each kind (default 3)")
    arguments = parser.parse_args()
    seconds: dict[str, list[float]] = {"cold": [], "cached": []}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(arguments.repeats):
            for kind, times in seconds.items():
                out = Path(folder) / f"{kind}{repeat}"
                times.append(start(Path(folder) / f"cache{repeat}", out))
    result = {f"{kind}_s": statistics.median(times) for kind, times in seconds.items()}
    for kind, times in seconds.items():
        print(f"{kind:<8}{result[f'{kind}_s']:>8.1f} s   of {', '.join(f'{t:.1f}' for t in times)}")
    publish("startup", result | {"seconds": seconds})


if __name__ == "__main__":
    main()
