"""A million clients beside a thousand: seconds per round, peak memory, disk, and a run that is killed and resumed.

    python benchmarks/population.py

Every client holds five samples, and a round draws 15 clients. Runs have a process of their own and take turns of ten
rounds; seconds are the median over turns. The clients of a thousand are on the devices, as `--population auto` puts
them; those of the million are on disk, and so are those of a second run of a thousand. Then the run of the million is
repeated, killed by SIGKILL, resumed, and compared with the first.
"""

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import publish

SAMPLES = 5
EVERY = 10  # rounds of a turn


def serve(clients: int, place: str, rounds: int, out: str, resume: bool) -> None:
    """The process of one run: prints the seconds of training so far after each turn, and waits for a line."""
    began = time.perf_counter()
    import rscfed_jax as rj

    rj.use_all_cores()
    config = rj.Config(
        dataset=f"synthetic:train={SAMPLES * clients},test=500",
        clients=clients,
        gamma="iid",
        min_client_size=SAMPLES,
        labeled_clients=clients // 10,
        population=place,
        rounds=rounds,
        eval_every=EVERY,
        checkpoint_every=2 * EVERY,
    )

    def turn(record: dict[str, Any]) -> None:
        print(record["round"], record["seconds"], flush=True)
        sys.stdin.readline()

    federation = rj.build_federation(config)
    loaded = time.perf_counter() - began
    result = rj.train(config, out=out, resume=resume, on_record=turn, federation=federation)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    facts = {"clients": clients, "population": place, "peak_gib": peak, "seconds_to_load": loaded}
    print(json.dumps(facts | {"accuracy": result.summary["final"]["accuracy"]}), flush=True)


class Run:
    """A run in a process of its own."""

    def __init__(self, clients: int, place: str, rounds: int, out: Path, *, resume: bool = False):
        self.out, self.turns, self.before = out, [], None
        command = [sys.executable, __file__, "--serve", str(clients), place, str(rounds), str(out), str(int(resume))]
        # A program that one run has compiled is ready for the run that is killed and for the one that resumes it.
        cache = {"JAX_COMPILATION_CACHE_DIR": str(out.parent / "cache")}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=os.environ | cache, **pipes)
        self.first = self.wait()

    def wait(self) -> tuple[int, float] | None:
        """Round and seconds of the next evaluation; None if the run is over."""
        line = self.process.stdout.readline()
        if line.startswith("{") or not line:
            self.facts = json.loads(line or "null")
            return None
        return int(line.split()[0]), float(line.split()[1])

    def turn(self) -> bool:
        """Lets the run make its next rounds; whether it is over."""
        before = self.before if self.before is not None else self.first[1]
        print("go", file=self.process.stdin, flush=True)
        if (now := self.wait()) is None:
            return True
        self.turns.append((now[1] - before) / EVERY)
        self.before = now[1]
        return False

    def row(self) -> dict[str, Any]:
        """What was measured."""
        size = sum(path.stat().st_size for path in self.out.rglob("*") if path.is_file())
        others = [path for path in self.out.iterdir() if path.is_file() and path.name != "clients.bin"]
        return self.facts | {
            "seconds_per_round": statistics.median(self.turns[1:]),
            "turns": self.turns,
            "disk_mib": size / 2**20,
            "largest_other_file_mib": max(path.stat().st_size for path in others) / 2**20,
        }


def records(out: Path) -> list[dict[str, Any]]:
    """The evaluated rounds of a run, without the time."""
    found = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in record.items() if name != "seconds"} for record in found]


def main() -> None:
    """Measures the runs in turns, kills and resumes one, prints a table and publishes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs=2, default=(1000, 1_000_000), help="clients of the runs")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--serve", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        clients, place, rounds, out, resume = arguments.serve
        serve(int(clients), place, int(rounds), out, bool(int(resume)))
        return
    few, many = arguments.clients
    loads = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory() as folder:
        places = [(few, "auto"), (few, "disk"), (many, "disk")]
        runs = [Run(n, place, arguments.rounds, Path(folder) / f"{n}-{place}") for n, place in places]
        waiting = list(runs)
        while waiting:
            waiting = [run for run in waiting if not run.turn()]
            loads.append(os.getloadavg()[0])
        rows = [run.row() for run in runs]
        killed = Run(many, "disk", arguments.rounds, Path(folder) / "killed")
        for _ in range(arguments.rounds // EVERY // 2):
            killed.turn()
        print("go", file=killed.process.stdin, flush=True)
        time.sleep(rows[-1]["seconds_per_round"] * EVERY / 2)
        killed.process.send_signal(signal.SIGKILL)
        killed.process.wait()
        again = Run(many, "disk", arguments.rounds, killed.out, resume=True)
        while not again.turn():
            pass
        same = records(killed.out) == records(runs[-1].out)
    print(f"{'clients':>10}{'population':>12}{'s per round':>13}{'peak GiB':>10}{'disk MiB':>10}{'load s':>8}")
    for row in rows:
        print(
            f"{row['clients']:>10}{row['population']:>12}{row['seconds_per_round']:>13.3f}{row['peak_gib']:>10.2f}"
            f"{row['disk_mib']:>10.1f}{row['seconds_to_load']:>8.1f}"
        )
    first, on_disk, last = rows
    result = {
        "time_ratio": last["seconds_per_round"] / first["seconds_per_round"],
        "time_ratio_disk": last["seconds_per_round"] / on_disk["seconds_per_round"],
        "memory_ratio": last["peak_gib"] / first["peak_gib"],
        "memory_ratio_disk": last["peak_gib"] / on_disk["peak_gib"],
        "resumed_run_is_the_same": same,
        "load_average": [min(loads), max(loads)],
        "runs": rows,
    }
    publish("population", result)


if __name__ == "__main__":
    main()
