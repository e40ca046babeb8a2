"""Several processes: flags, agreement, and what happens when one of them ends."""

import os
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from rscfed_jax.config import SettingError
from rscfed_jax.runner import processes
from rscfed_jax.runner.processes import ALONE, Company
from rscfed_jax.runner.signs import ONE_ENDED
from tests.helpers import SMALL, flags_of, records_of

GOOD = ("10.0.0.1:1234", "4", "3")


def test_the_flags_name_the_company(monkeypatch):
    assert Company.of(*GOOD) == Company("10.0.0.1:1234", 4, 3)
    assert not Company.of(*GOOD).writes
    assert Company.of(None, None, None) == ALONE
    assert ALONE.writes
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    monkeypatch.setenv("SLURM_PROCID", "2")
    assert not Company.of(None, None, None).writes


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("host:1", None, "0"), "--coordinator host:1: needs --num-processes as well"),
        ((None, "2", None), "--num-processes 2: needs --coordinator, --process-id as well"),
        (("host", "2", "0"), "--coordinator host: must be HOST:PORT"),
        (("host:70000", "2", "0"), "--coordinator host:70000: must be HOST:PORT"),
        (("host:1", "0", "0"), "--num-processes 0: must be a whole number from 1"),
        (("host:1", "x", "0"), "--num-processes x: must be a whole number from 1"),
        (("host:1", "2", "2"), "--process-id 2: must be from 0 to 1"),
        (("host:1", "2", "-1"), "--process-id -1: must be from 0 to 1"),
        (("host:1", "9" * 5000, "0"), ": must be a whole number from 1"),
        (("host:" + "9" * 5000, "2", "0"), ": must be HOST:PORT"),
    ],
)
def test_wrong_flags_are_refused(flags, said):
    with pytest.raises(SettingError) as error:
        Company.of(*flags)
    assert said in str(error.value)


def test_a_process_alone_agrees_with_itself():
    assert processes.is_first()
    assert processes.any_of_them(True)
    assert not processes.any_of_them(False)
    assert processes.from_the_first(None) is None
    assert processes.leave(7) == 7


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "a..b"])
def test_a_coordinator_that_does_not_answer_is_named(monkeypatch, host):
    monkeypatch.setattr(processes, "PATIENCE", 0.1)
    address = f"{host}:{free_port()}"
    with pytest.raises(SettingError) as error:
        processes.connect(Company(address, 2, 1))
    assert f"--coordinator {address}: does not answer within 0.1 s" in str(error.value)


def test_a_scheduler_that_jax_cannot_follow_is_named(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setattr(jax.distributed, "initialize", lambda **_: refuse())

    def refuse():
        raise ValueError("coordinator_address should be defined.")

    with pytest.raises(
        SettingError, match=r"--coordinator of the scheduler: the processes could not connect: coordinator"
    ):
        processes.connect(ALONE)


def test_a_process_whose_companions_do_not_come_says_so():
    address = f"127.0.0.1:{free_port()}"
    code = (
        "from rscfed_jax.runner import processes; processes.PATIENCE = 2; "
        f"processes.connect(processes.Company('{address}', 2, 0))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(f"--coordinator {address}: not all processes connected within 2 s")


class Two:
    """Two processes of a command on this machine, each with one device."""

    def __init__(self, tmp_path, *arguments):
        address = f"127.0.0.1:{free_port()}"
        flags = "--xla_force_host_platform_device_count=1 --xla_backend_optimization_level=0"
        environment = os.environ | {"XLA_FLAGS": flags, "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}
        command = [sys.executable, "-m", "rscfed_jax", *arguments, "--coordinator", address, "--num-processes", "2"]
        self.both = [
            subprocess.Popen(
                [*command, "--process-id", str(number)],
                cwd=tmp_path,
                env=environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for number in range(2)
        ]

    def end(self):
        """Exit codes, and what was said on stderr."""
        said = [process.communicate(timeout=300)[1] for process in self.both]
        return [process.returncode for process in self.both], said


BASE = flags_of(SMALL | {"eval_every": 1, "checkpoint_every": 1, "warmup_rounds": 1, "devices": "auto"})


@pytest.mark.slow
def test_two_processes_give_the_run_of_one_and_it_goes_on_with_one(tmp_path):
    codes, said = Two(tmp_path, "train", *BASE, "--rounds", "2", "--out", "two").end()
    assert codes == [0, 0], said
    flags = [*BASE, "--rounds", "4", "--out"]
    for out, more in (("one", ()), ("two", ("--resume",))):
        command = [sys.executable, "-m", "rscfed_jax", "train", *flags, out, *more, "--quiet"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    records = [records_of(tmp_path / out) for out in ("one", "two")]
    assert [record["round"] for record in records[0]] == [0, 1, 2, 3, 4]
    for own, other in zip(*records, strict=True):
        assert own["models_up"] == other["models_up"]
        np.testing.assert_allclose(own["auc"], other["auc"], atol=1e-3)
        np.testing.assert_allclose(own["labeled_loss"] or 0, other["labeled_loss"] or 0, atol=1e-4)


@pytest.mark.slow
def test_a_grid_on_two_processes_begins_with_a_run_and_goes_on(tmp_path):
    codes, said = Two(tmp_path, "train", *BASE, "--rounds", "1", "--out", "first").end()
    assert codes == [0, 0], said
    for rounds in ("2", "3"):
        flags = ["--rounds", rounds, "--init-from", "first", "--set", "beta=0,100,1e4", "--grid-devices", "2"]
        codes, said = Two(tmp_path, "grid", *BASE, *flags, "--out", "grid").end()
        assert codes == [0, 0], said
        assert len((tmp_path / "grid" / "summary.csv").read_text().splitlines()) == 4
    assert "resumed at round 2" in said[0]


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_process_ends_the_other_in_a_line(tmp_path, killed):
    two = Two(tmp_path, "train", *BASE, "--rounds", "1000000", "--out", "two", "--quiet")
    metrics = tmp_path / "two" / "metrics.jsonl"
    until = time.monotonic() + 200
    while not (metrics.exists() and len(metrics.read_text().splitlines()) > 3) and time.monotonic() < until:
        time.sleep(0.5)
    two.both[killed].send_signal(signal.SIGKILL)
    began = time.monotonic()
    codes, said = two.end()
    assert codes[killed] == -signal.SIGKILL
    assert codes[1 - killed] == ONE_ENDED
    assert time.monotonic() - began < 100
    (line,) = said[1 - killed].splitlines()
    assert "another process of this run has ended" in line


def connected(work):
    """Exit codes and stderr of two processes that connect, signal each other all the time, and do something."""
    code = (
        "import os, sys, time; from rscfed_jax.runner import processes, signs; signs.BEAT = 0.1; signs.PATIENCE = 5; "
        f"process = int(sys.argv[1]); processes.connect(processes.Company('127.0.0.1:{free_port()}', 2, process)); "
        f"time.sleep(1); {work}"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", code, str(number)], stderr=subprocess.PIPE, text=True)
        for number in range(2)
    ]
    said = [process.communicate(timeout=120)[1] for process in both]
    return [process.returncode for process in both], said


@pytest.mark.slow
def test_processes_end_in_order_while_their_watch_is_inside_a_call():
    """Python's own end would abort about every other of them."""
    codes, said = connected("signs.BEAT = 0.0; time.sleep(1); sys.exit(processes.leave(0))")
    assert codes == [0, 0], said


@pytest.mark.slow
def test_the_end_of_the_coordinator_ends_a_process_that_does_something_else_in_a_line():
    """JAX's client would abort it."""
    codes, said = connected("os._exit(9) if process == 0 else time.sleep(100)")
    assert codes == [9, ONE_ENDED], said
    assert said[1].splitlines() == [
        "rscfed-jax: error: another process of this run has ended: process 0 has given no sign of life for 5 s"
    ]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (jax.errors.JaxRuntimeError("INTERNAL: broken"), True),
        (ValueError("UNKNOWN: Gloo AllGather failed: Connection reset by peer"), True),  # as seen of multihost_utils
        (ValueError("all arrays must have the same shape"), False),
        (KeyError("UNKNOWN: a name"), False),
    ],
)
def test_an_error_of_the_runtime_is_told_from_one_of_a_program(error, expected):
    assert processes.is_of_the_runtime(error) is expected


def test_a_host_is_known_by_the_address_that_leads_to_the_coordinator():
    assert processes.own_address("127.0.0.1:80", first=True) == "127.0.0.1"
    assert processes.own_address("127.0.0.1:80", first=False) == "127.0.0.1"
    assert processes.own_address("[::1]:80", first=True) == "::1"
    assert processes.own_address("a..b:80", first=False) is None
    assert processes.own_address("192.0.2.1:80", first=True) is None  # of no machine: it leads here from elsewhere
