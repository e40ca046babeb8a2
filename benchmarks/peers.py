"""A round of federated averaging: this project against a lean PyTorch loop, Flower, pfl-research and FedJAX.

    python benchmarks/peers.py                                   # makes the peers' environments: about 4 GB
    python benchmarks/peers.py --fedjax CHECKOUT                 # also FedJAX, from a checkout of its repository
    python benchmarks/peers.py --settings 10x640 --peers flower  # one comparison

The work is the same for all: every client holds random 32x32x3 images as bytes in memory and trains the paper's simple
CNN on them for one epoch with batches of 64, SGD 0.03 with momentum 0.9 (fresh each round), weight decay 5e-4 and
cross-entropy; all clients take part, and the new model is the mean of theirs by data amount. A setting is the number
of clients times the samples of each. Nothing is evaluated. This project does more than its peers: it also crops every
image at random from one of 40x40 and computes the gradient's norm.

- `ours`: the method `fedavg` with all clients labeled, and every other choice left to the package.
- `torch`: one client after the other in one process, with fused SGD and all threads.
- `flower`: Ray simulation, a supernode for each client and one CPU for each client that trains.
- `pfl`: pfl-research with one process and all threads; it does not shuffle the samples.
- `fedjax`: its default backend. The released package fails with current JAX, so it needs --fedjax.

Each system lives in a process of its own, which stays alive and waits for its turn. A turn is a few rounds; the system
that begins changes from turn to turn. Seconds of a round are medians over the turns. Flower pauses between rounds as
the others do, because its server's function waits. Who waits is stopped with all its children (so this needs Linux):
Flower and Ray would otherwise use 5 to 8% of a core in the turns of the others.
`start` is the time from the start of the process to the end of its first round, with compilation but without the
making of the environment, once for each setting.

Every peer has an environment of its own under --environments, made by pip from the index that it is configured for,
with pinned versions, and kept for the next run. For the small CPU build of PyTorch,
set PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu. A peer that fails is reported with its error.
"""

import argparse
import collections
import contextlib
import dataclasses
import hashlib
import os
import select
import shutil
import signal
import statistics
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from common import publish

from rscfed_jax.config.files import cache_folder

HERE = Path(__file__).resolve().parent
TORCH = ("torch==2.13.0", "numpy==2.4.6", "pillow==13.0.0")
REQUIREMENTS = {
    "torch": TORCH,
    "flower": ("flwr[simulation]==1.41.0", *TORCH),
    "pfl": ("pfl[pytorch]==0.6.0", *TORCH),
    "fedjax": (
        f"jax=={metadata.version('jax')}",  # the same compiler as ours
        *("optax==0.2.8", "dm-haiku==0.0.17", "absl-py==2.5.1", "msgpack==1.2.4", "requests==2.34.2", "scipy==1.17.1"),
    ),
}
SETTINGS = ("10x640", "100x64", "1000x64")
# No word to the makers of Flower and Ray, and no program that an earlier run compiled.
VARIABLES = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "JAX_ENABLE_COMPILATION_CACHE": "0"}


class PeerError(Exception):
    """A system that cannot be measured, and why."""


def family(process: int) -> list[int]:
    """A process and all its descendants."""
    children = collections.defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # ended meanwhile
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children[parent].append(int(stat.parent.name))
    found = [process]
    for member in found:
        found += children[member]
    return found


def send(number: signal.Signals, processes: list[int]) -> None:
    """Sends a signal to those that still live."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def last_line(text: str) -> str:
    """The last line of a log that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message")


def make_environment(name: str, home: Path) -> Path:
    """The Python of a peer's environment, which is made unless it is there with the same requirements."""
    requirements = REQUIREMENTS[name]
    mark = hashlib.sha256("\n".join([sys.version, *requirements]).encode()).hexdigest()[:8]
    folder = home / f"{name}-{mark}"
    python = folder / "bin" / "python"
    complete = folder / "complete"
    if complete.exists():
        return python
    print(f"{name}: making {folder}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    install = [str(python), "-m", "pip", "install", "--quiet", *requirements]
    for command in ([sys.executable, "-m", "venv", str(folder)], install):
        made = subprocess.run(command, capture_output=True, text=True)
        if made.returncode != 0:
            raise PeerError(f"its environment could not be made: {last_line(made.stderr)}")
    complete.touch()
    return python


@dataclasses.dataclass
class Worker:
    """The process of one system in one setting, stopped but for its turns."""

    process: subprocess.Popen
    answers: Any  # the end of a pipe, unbuffered
    log: Path
    patience: float
    start: float = 0.0
    stopped: list[int] = dataclasses.field(default_factory=list)
    seconds: list[float] = dataclasses.field(default_factory=list)

    @classmethod
    def begin(cls, command: list[str], paths: list[Path], log: Path, patience: float) -> "Worker":
        """Starts the process and waits for its first round."""
        environment = os.environ | VARIABLES | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
        reading, writing = os.pipe()
        began = time.perf_counter()
        with log.open("w") as file:
            process = subprocess.Popen(
                [*command, str(writing)],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=[writing],
                start_new_session=True,
                text=True,
            )
        os.close(writing)
        worker = cls(process, os.fdopen(reading, "rb", 0), log, patience)
        try:
            worker.ask(1)
        except BaseException:
            worker.end()
            raise
        worker.start = time.perf_counter() - began
        return worker

    def ask(self, rounds: int) -> float:
        """The seconds of one of as many rounds."""
        self.wake()
        with contextlib.suppress(BrokenPipeError):
            print(rounds, file=self.process.stdin, flush=True)
        ready, _, _ = select.select([self.answers], [], [], self.patience)
        if not ready:
            raise PeerError(f"no answer in {self.patience:.0f} s")
        if not (answer := self.answers.readline()):
            raise PeerError(last_line(self.log.read_text(errors="replace")))
        self.stopped = family(self.process.pid)
        send(signal.SIGSTOP, self.stopped)
        return float(answer)

    def wake(self) -> None:
        """Lets the process and its children go on."""
        send(signal.SIGCONT, self.stopped)
        self.stopped = []

    def end(self) -> None:
        """Lets the process finish; one that does not is killed with its children."""
        self.wake()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            send(signal.SIGKILL, family(self.process.pid))
            self.process.wait()
        self.answers.close()


def start_worker(name: str, setting: str, arguments: argparse.Namespace) -> Worker:
    """Starts a system and waits for its first round."""
    paths = [HERE.parent, HERE] if name == "ours" else [HERE]
    if name == "fedjax":
        if arguments.fedjax is None:
            raise PeerError("needs --fedjax PATH")
        paths.append(arguments.fedjax.resolve())
    python = sys.executable if name == "ours" else make_environment(name, arguments.environments)
    command = [
        str(python),
        str(HERE / "peer_workers" / f"{name}_worker.py"),
        *setting.split("x"),
        str(arguments.rounds),
    ]
    logs = arguments.environments / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    return Worker.begin(command, paths, logs / f"{name}_{setting}.txt", arguments.timeout)


def measure(setting: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The figures of one setting."""
    errors: dict[str, str] = {}
    workers: dict[str, Worker] = {}
    try:
        for name in ("ours", *arguments.peers):
            print(f"{setting}: {name} starts", flush=True)
            try:
                workers[name] = start_worker(name, setting, arguments)
            except PeerError as error:
                errors[name] = str(error)
        for turn in range(arguments.repeats + 1):
            order = list(workers) if turn % 2 == 0 else list(reversed(workers))
            for name in order:
                try:
                    seconds = workers[name].ask(arguments.rounds)
                except PeerError as error:
                    errors[name] = str(error)
                    workers.pop(name).end()
                    continue
                if turn > 0:  # the first warms up
                    workers[name].seconds.append(seconds)
    finally:
        for worker in workers.values():
            worker.end()
    median = {name: statistics.median(worker.seconds) for name, worker in workers.items()}
    result: dict[str, Any] = {"seconds": median}
    if "ours" in median:
        result |= {f"ratio_{name}": value / median["ours"] for name, value in median.items() if name != "ours"}
    result |= {f"start_{name}": worker.start for name, worker in workers.items()}
    result["turns"] = {name: [round(s, 4) for s in worker.seconds] for name, worker in workers.items()}
    return result | ({"errors": errors} if errors else {})


def print_table(results: dict[str, dict[str, Any]]) -> None:
    """A line for each setting and system."""
    print(f"{'setting':<10}{'system':<10}{'median s':>10}{'min s':>10}{'max s':>10}{'times ours':>12}{'start s':>10}")
    for setting, result in results.items():
        for name, turns in result["turns"].items():
            ratio = f"{result[f'ratio_{name}']:.2f}" if f"ratio_{name}" in result else ""
            times = f"{result['seconds'][name]:>10.3f}{min(turns):>10.3f}{max(turns):>10.3f}"
            print(f"{setting:<10}{name:<10}{times}{ratio:>12}{result[f'start_{name}']:>10.1f}")
        for name, error in result.get("errors", {}).items():
            print(f"{setting:<10}{name:<10}{error}")


def setting_of(text: str) -> str:
    """Checks a setting such as 10x640."""
    clients, _, samples = text.partition("x")
    if not (clients.isdecimal() and samples.isdecimal() and int(clients) > 1 and int(samples) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} must be CLIENTSxSAMPLES with two or more clients, such as 10x640")
    return text


def main() -> None:
    """Measures every setting, prints a table and publishes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    settings = {"nargs": "+", "default": SETTINGS, "metavar": "CLIENTSxSAMPLES"}
    parser.add_argument("--settings", type=setting_of, **settings, help=f"(default {' '.join(SETTINGS)})")
    parser.add_argument("--peers", nargs="+", choices=REQUIREMENTS, help="peers to compare with (default all)")
    parser.add_argument("--repeats", type=int, default=7, help="turns of each system (default 7)")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of a turn (default 2)")
    parser.add_argument("--fedjax", type=Path, metavar="PATH", help="checkout of the FedJAX repository")
    parser.add_argument("--environments", type=Path, default=cache_folder("peers"), help="where they are kept")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds to wait for a turn (default 1800)")
    arguments = parser.parse_args()
    if arguments.peers is None:
        arguments.peers = [name for name in REQUIREMENTS if name != "fedjax" or arguments.fedjax]
    arguments.environments = arguments.environments.resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that stopped processes are ended
    results = {setting: measure(setting, arguments) for setting in arguments.settings}
    print_table(results)
    work = {"repeats": arguments.repeats, "rounds": arguments.rounds}
    requirements = {name: list(REQUIREMENTS[name]) for name in arguments.peers}
    publish("peers", results | work | {"requirements": requirements})


if __name__ == "__main__":
    main()
