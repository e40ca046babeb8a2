"""A run by two hosts on a bad network: two network namespaces with a link that loses, delays and breaks.

    python benchmarks/two_hosts.py                # as root on Linux with iproute2; prints and keeps a table of faults

For JAX they are two machines: each has its own addresses, and they reach each other only over the link, whose packets
a relay passes on. The host 0 is the coordinator. Every fault comes when some rounds are done. The run must go on, or
both processes must end with exit code 4 (one that is killed: as such) and one line, within `BOUND` seconds; resumed
without the fault, it must give the numbers of the run that had none.
"""

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

TUN = Path("/dev/net/tun")
SET_NAME, NO_HEADER = 0x400454CA, 0x1001  # of Linux: the name of a TUN device, whose packets come as they are
ADDRESSES = ("10.77.0.1", "10.77.0.2")
DELAY = 0.003  # seconds that a packet takes one way on the good link
BOUND = 120  # seconds after a fault in which a run that cannot go on must have ended
ROUNDS = 40
FLAGS = [
    *("--dataset", "synthetic:train=120,test=40,classes=3,size=16", "--image-size", "16", "--gamma", "iid"),
    *("--batch-size", "16", "--clients", "4", "--min-client-size", "5", "--subsets", "2", "--subset-size", "2"),
    *("--model", str(Path(__file__).parents[1] / "tests" / "tiny_network.py")),
    *("--rounds", str(ROUNDS), "--eval-every", "2", "--checkpoint-every", "5", "--quiet"),
]
FAKE_TIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None) if sys.platform == "linux" else None


class Fault(NamedTuple):
    """What goes wrong, once some rounds are done."""

    link: tuple[float, float] = (DELAY, 0.0)  # delay and loss from the start
    cut: float = 0  # seconds without any packet
    killed: int | None = None  # which host's process
    clock: str | None = None  # of host 1, as faketime takes it
    goes_on: bool | None = True  # None: it may, or end


FAULTS = {
    "none": Fault(),
    "link cut for good": Fault(cut=1e6, goes_on=False),
    "coordinator killed": Fault(killed=0, goes_on=False),
    "link cut for 5 s": Fault(cut=5),
    "other host killed": Fault(killed=1, goes_on=False),
    "link cut for 20 s": Fault(cut=20, goes_on=None),  # TCP's next try may come after the 30 s that XLA waits
    "2% of packets lost, 10 ms": Fault(link=(0.01, 0.02)),
    "clock a day ahead": Fault(clock="+1d"),
    "50 ms each way": Fault(link=(0.05, 0.0)),
}


class Hosts:
    """Two hosts and their link."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.names = [f"rscfed-{os.getpid()}-{number}" for number in range(2)]

    def __enter__(self) -> "Hosts":
        with contextlib.ExitStack() as held:
            devices = []
            for number, name in enumerate(self.names):
                _ip("netns", "add", name)
                held.callback(_ip, "netns", "del", name)
                devices.append(os.open(TUN, os.O_RDWR))
                held.callback(os.close, devices[-1])
                device = f"rj{os.getpid()}{'ab'[number]}"
                fcntl.ioctl(devices[-1], SET_NAME, struct.pack("16sH", device.encode(), NO_HEADER))
                _ip("link", "set", device, "netns", name)
                _ip("-n", name, "link", "set", "lo", "up")
                _ip("-n", name, "addr", "add", f"{ADDRESSES[number]}/24", "dev", device)
                _ip("-n", name, "link", "set", device, "up")
            command = [sys.executable, str(Path(__file__).with_name("relay.py")), *map(str, devices)]
            self._relay = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=devices)
            held.callback(self._relay.wait)
            assert self._relay.stdin is not None
            held.callback(self._relay.stdin.close)
            self.set_link(DELAY, 0.0)
            self._held = held.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def set_link(self, delay: float, loss: float) -> None:
        """How the link is from now on."""
        assert self._relay.stdin is not None
        self._relay.stdin.write(f"{delay} {loss}\n".encode())
        self._relay.stdin.flush()

    def start(self, arguments: Sequence[str], *, clock: str | None = None) -> list["Host"]:
        """Starts a command on both hosts."""
        return [Host(self, number, arguments, clock if number else None) for number in range(2)]


class Host:
    """The process of one host."""

    def __init__(self, hosts: Hosts, number: int, arguments: Sequence[str], clock: str | None):
        self.said = hosts.folder / f"said{number}.txt"
        flags = "--xla_force_host_platform_device_count=1 --xla_backend_optimization_level=0"
        environment = os.environ | {"XLA_FLAGS": flags, "JAX_COMPILATION_CACHE_DIR": str(hosts.folder / "cache")}
        if clock is not None:
            # Waiting is by the monotonic clock, which nobody can set.
            fake = {"LD_PRELOAD": str(FAKE_TIME), "FAKETIME": clock, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
            environment |= fake
        address = f"{ADDRESSES[0]}:{7777}"
        own = ["--coordinator", address, "--num-processes", "2", "--process-id", str(number)]
        command = ["ip", "netns", "exec", hosts.names[number], sys.executable, "-m", "rscfed_jax", *arguments, *own]
        with self.said.open("w") as said:
            self.process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=said)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def why_not() -> str | None:
    """Why there can be no two hosts here; None if there can."""
    if sys.platform != "linux" or os.geteuid() != 0 or not TUN.exists() or shutil.which("ip") is None:
        return "needs root on Linux, iproute2 and TUN devices"
    try:
        with tempfile.TemporaryDirectory() as folder, Hosts(Path(folder)):
            return None
    except (OSError, subprocess.CalledProcessError) as error:
        return f"network namespaces cannot be made: {error}"


def rounds_done(out: Path) -> int:
    """How many rounds a run has evaluated."""
    file = out / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def numbers_of(out: Path) -> list[dict[str, Any]]:
    """The metrics of a run, without wall-clock fields."""
    file = out / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [{name: value for name, value in json.loads(line).items() if name != "seconds"} for line in lines]


class Awake:
    """A clock that stands still while this process is stopped, as the runs may be then as well."""

    def __init__(self) -> None:
        self.seconds, self._last = 0.0, time.monotonic()

    def after(self, pause: float) -> float:
        """Its time after a pause."""
        time.sleep(pause)
        before, self._last = self._last, time.monotonic()
        self.seconds += min(self._last - before, 1.0)
        return self.seconds


@contextlib.contextmanager
def started(hosts: Hosts, out: Path, fault: Fault) -> Iterator[list[Host]]:
    """The processes of a run, which do not outlive the `with` block."""
    both = hosts.start(["train", *FLAGS, "--out", str(out), "--resume"], clock=fault.clock)
    try:
        yield both
    finally:
        for host in both:
            host.process.kill()
            host.process.wait()


def try_fault(hosts: Hosts, out: Path, fault: Fault, *, patience: float = 900) -> dict[str, Any]:
    """Lets a fault come to a run, and says what the run did and how long it took from then to its end."""
    hosts.set_link(*fault.link)
    awake = Awake()
    with started(hosts, out, fault) as both:
        processes = [host.process for host in both]
        while rounds_done(out) < 4 and all(each.poll() is None for each in processes):
            if awake.after(0.02) > patience:
                raise TimeoutError(f"no rounds after {patience} s: {both[0].said.read_text()[-500:]}")
        awake = Awake()
        if fault.killed is not None:
            processes[fault.killed].send_signal(signal.SIGKILL)
        if fault.cut:
            hosts.set_link(0, 1.0)
            while awake.after(0.05) < min(fault.cut, patience) and any(each.poll() is None for each in processes):
                pass
            hosts.set_link(*fault.link)
        while any(each.poll() is None for each in processes) and awake.after(0.05) < patience:
            pass
        codes = [each.poll() for each in processes]
        said = [host.said.read_text().strip() for host in both]
    hosts.set_link(DELAY, 0.0)
    return {"codes": codes, "seconds": round(awake.seconds, 1), "said": said, "rounds": rounds_done(out) * 2 - 2}


def all_faults(folder: Path, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Tries faults one after the other: the first, which is none, gives the numbers that all must have in the end."""
    expected: list[dict[str, Any]] | None = None
    with Hosts(folder) as hosts:
        for name in names:
            fault, out = FAULTS[name], folder / name.replace(" ", "-").replace("%", "")
            if fault.clock is not None and FAKE_TIME is None:
                yield {"fault": name, "skipped": "needs faketime"}
                continue
            result = {"fault": name} | try_fault(hosts, out, fault)
            if result["codes"] != [0, 0]:
                again = try_fault(hosts, out, Fault())
                result |= {"resumed": again["codes"]}
            expected = numbers_of(out) if expected is None else expected
            yield result | {"same_numbers": numbers_of(out) == expected}


def main() -> None:
    """Tries the faults, prints a table and publishes it."""
    from common import publish

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="FAULT", help=f"of {', '.join(FAULTS)}; not published")
    arguments = parser.parse_args()
    if (reason := why_not()) is not None:
        sys.exit(reason)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for result in all_faults(Path(folder), ["none", *(arguments.only or list(FAULTS)[1:])]):
            results.append(result)
            print(json.dumps(result), flush=True)
            if arguments.only is None:
                publish("two_hosts", {"faults": results})


if __name__ == "__main__":
    main()
