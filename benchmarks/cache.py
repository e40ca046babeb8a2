"""Hundreds of starts on one cache of compiled programs, under conditions that have ended processes before.

    python benchmarks/cache.py                   # 20 starts for each condition, four at a time where that is the point

Every start compiles or reads the same small programs and must end well with the same numbers. Between starts the cache
is left alone, shared by several processes at once, filled up, made read-only, or its entries are cut, replaced by
foreign bytes or by each other; or a start is killed at a random moment. A small file system, for the full disk, needs
the right to mount one; elsewhere that condition is left out, and the result says so.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common import publish

PROGRAM = """
import jax, jax.numpy as jnp
from rscfed_jax.runner.start import start_jax
start_jax()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
x = jnp.arange(64.0).reshape(8, 8) / 64
for depth in range(1, 4):
    x = jax.jit(lambda x: jax.lax.fori_loop(0, depth, lambda _, y: jnp.sin(y) @ x, x))(x)
print(float(x.sum()))
"""
SMALL_DISK = "200k"


def start(home: Path, *, kill_after: float | None = None) -> tuple[int, str, str]:
    """Exit code of one start, what it computed, and what it said on stderr."""
    environment = os.environ | {"XDG_CACHE_HOME": str(home), "JAX_PLATFORMS": "cpu"}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        if kill_after is not None:
            time.sleep(kill_after)
            process.send_signal(signal.SIGKILL)
        out, err = process.communicate()
    return process.returncode, out.strip(), err


def entries(home: Path) -> list[Path]:
    """The programs in the cache."""
    return sorted((home / "rscfed_jax" / "xla").glob("*.program"))


def nothing(home: Path, rng: random.Random) -> None:
    """Leaves the cache alone."""


def cut(home: Path, rng: random.Random) -> None:
    """Truncates an entry."""
    for entry in rng.sample(entries(home), min(2, len(entries(home)))):
        content = entry.read_bytes()
        entry.write_bytes(content[: rng.randrange(len(content) or 1)])


def foreign(home: Path, rng: random.Random) -> None:
    """Replaces an entry by random bytes, or by another entry."""
    found = entries(home)
    for entry in rng.sample(found, min(2, len(found))):
        entry.write_bytes(rng.randbytes(5000) if rng.random() < 0.5 else rng.choice(found).read_bytes())


def fill(home: Path, rng: random.Random) -> None:
    """Leaves no space on the small disk, or as little as an entry does not fit into."""
    with contextlib.suppress(OSError), (home / "filler").open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def read_only(home: Path, rng: random.Random) -> None:
    """Takes away the right to write; to the administrator that makes no difference, a file instead of a folder does."""
    folder = home / "rscfed_jax"
    if os.geteuid():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o500)
    elif not folder.exists():
        folder.write_text("")


@contextlib.contextmanager
def small_disk(home: Path) -> Iterator[bool]:
    """Mounts a file system with little space for the cache; False where that is not allowed."""
    options = ["-t", "tmpfs", "-o", f"size={SMALL_DISK}", "tmpfs", str(home)]
    mounted = subprocess.run(["mount", *options], capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(home)], check=True)


CONDITIONS: dict[str, tuple[Callable[[Path, random.Random], None], int]] = {
    "left alone": (nothing, 1),
    "four at once": (nothing, 4),
    "cut": (cut, 1),
    "foreign": (foreign, 1),
    "read-only": (read_only, 1),
    "killed": (nothing, 1),
    "full disk": (fill, 2),
}


def try_condition(name: str, starts: int, rng: random.Random, expected: str) -> dict[str, Any]:
    """How many starts under a condition ended well."""
    change, at_once = CONDITIONS[name]
    codes: dict[str, int] = {}
    killed = wrong = lines = 0
    with contextlib.ExitStack() as held:
        home = Path(held.enter_context(tempfile.TemporaryDirectory()))
        if name == "full disk" and not held.enter_context(small_disk(home)):
            return {"left out": "no right to mount a small file system"}
        pool = held.enter_context(ThreadPoolExecutor(4))
        done = 0
        while done < starts:
            if name == "killed":
                start(home, kill_after=rng.uniform(0.5, 6.0))
                killed += 1
            change(home, rng)
            for code, out, err in pool.map(lambda _: start(home), range(at_once)):
                codes[str(code)] = codes.get(str(code), 0) + 1
                wrong += out != expected
                lines += len(err.splitlines())
                done += 1
        left = [path.name for path in home.rglob("*") if path.name.endswith((".part", ".trying"))]
    return {"starts": done, "killed": killed, "exit_codes": codes, "wrong": wrong, "lines": lines, "left": len(left)}


def main() -> int:
    """Tries all conditions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=20, help="for each condition (default 20)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help=f"some conditions, with commas between them: {', '.join(CONDITIONS)}")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as place:
        code, expected, said = start(Path(place))
    if code:
        raise RuntimeError(f"a start with an empty cache ended with {code}: {said}")
    found = {}
    for name in arguments.only.split(",") if arguments.only else CONDITIONS:
        found[name] = try_condition(name, arguments.starts, rng, expected)
        print(f"{name}: {json.dumps(found[name])}", file=sys.stderr)
    result = {
        "seed": arguments.seed,
        "starts": sum(each.get("starts", 0) for each in found.values()),
        "failed": sum(each.get("wrong", 0) for each in found.values()),
        "conditions": found,
    }
    publish("cache", result)
    return 1 if result["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
