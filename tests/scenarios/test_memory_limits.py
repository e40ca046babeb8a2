"""Runs under a limit of memory: refused in one line, or ended by the system with a directory that can be resumed."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rscfed_jax as rj
from rscfed_jax.cli import commands
from rscfed_jax.runner import loop
from tests.helpers import SMALL, assert_same_run, flags_of, run, saved_rounds

GIB = 2**30
SETTINGS = SMALL | {"rounds": 12, "checkpoint_every": 3}
LARGE = SETTINGS | {"dataset": "synthetic:train=400000,test=40,classes=3,size=32", "image_size": 32}  # 2.4 GiB
CUT = "--xla_force_host_platform_device_count=1 --xla_backend_optimization_level=0"


def limited(limit, *command):
    """A command after a line of shell that limits its process; Python code there would have to fork JAX."""
    return ["sh", "-c", f'{limit}; exec "$@"', "sh", *command]


def train(out, settings, limit="true"):
    """A run in a process of its own."""
    command = [sys.executable, "-m", "rscfed_jax", "train", *flags_of(settings), "--out", str(out), "--quiet"]
    environment = os.environ | {"XLA_FLAGS": CUT}
    return subprocess.Popen(
        limited(limit, *command, "--resume"),
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("error", [MemoryError("Unable to allocate 9 GiB"), RuntimeError("RESOURCE_EXHAUSTED: Out of")])
def test_memory_that_runs_out_in_a_round_ends_the_run_in_a_line_and_it_resumes(tmp_path, monkeypatch, capfd, error):
    out, advance = tmp_path / "run", loop.Loop._advance

    def fail(self, *arguments):
        if self.round >= 6:
            raise error
        advance(self, *arguments)

    monkeypatch.setattr(loop.Loop, "_advance", fail)
    assert run("train", *flags_of(SETTINGS), "--out", out, "--quiet") == 2
    [said] = capfd.readouterr().err.splitlines()
    assert said.startswith(f"rscfed-jax train: error: not enough memory: {str(error)[:20]}")
    assert said.endswith("--resume` with the same flags continues it")
    assert saved_rounds(out)[-1] == 6
    monkeypatch.setattr(loop.Loop, "_advance", advance)
    rj.train(rj.Config(**SETTINGS), out=out, resume=True)
    rj.train(rj.Config(**SETTINGS), out=tmp_path / "whole")
    assert_same_run(out, tmp_path / "whole")


def test_memory_that_runs_out_before_the_rounds_is_one_line_too(tmp_path, monkeypatch, capfd):
    def fail(config):
        raise MemoryError("Unable to allocate 9 GiB")

    monkeypatch.setattr(commands, "build_federation", fail)
    assert run("train", *flags_of(SETTINGS), "--out", tmp_path / "run") == 2
    assert capfd.readouterr().err == "rscfed-jax train: error: not enough memory: Unable to allocate 9 GiB\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "said"),
    [
        (1 * GIB, "not enough memory: JAX needs at least 2 GiB of address space, and `ulimit -v` allows 1.00"),
        (3 * GIB, "images and states of these clients take at least"),
        (5 * GIB, "not enough memory: Unable to allocate"),  # before the first checkpoint
    ],
)
def test_an_address_space_that_is_too_small_is_one_line(tmp_path, size, said):
    process = train(tmp_path / "run", LARGE, f"ulimit -v {size // 1024}")
    [line] = process.communicate(timeout=600)[1].splitlines()
    assert process.returncode == 2
    assert said in line
    assert not (tmp_path / "run").exists()


@pytest.fixture
def group():
    """A control group below this process's own, with a limit; skips where there can be none."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    own = {controllers: place.lstrip("/") for _, controllers, place in lines}
    first = "memory" in own
    above = Path("/sys/fs/cgroup/memory" if first else "/sys/fs/cgroup") / own.get("memory", own.get("", ""))
    name = above / f"rscfed-test-{os.getpid()}"
    limit = "memory.limit_in_bytes" if first else "memory.max"
    try:
        name.mkdir()
        (name / limit).write_text(str(2 * GIB))
    except OSError as error:
        with contextlib.suppress(OSError):
            name.rmdir()
        pytest.skip(f"no control group can be made: {error}")
    yield name
    for _ in range(100):
        with contextlib.suppress(OSError):
            name.rmdir()
            break
        time.sleep(0.1)


def enter(group):
    """The line of shell that puts a process into a group."""
    return f"echo $$ > {group}/cgroup.procs"


@pytest.mark.slow
def test_a_run_that_its_control_group_has_no_room_for_is_refused(tmp_path, group):
    process = train(tmp_path / "run", LARGE, enter(group))
    [line] = process.communicate(timeout=600)[1].splitlines()
    assert process.returncode == 2
    assert "left by the limit of the control group" in line
    assert not (tmp_path / "run").exists()


HOG = "import time; held = [bytearray(2**24) for _ in range(192)]; time.sleep(60)"  # 3 GiB


@pytest.mark.slow
def test_a_run_that_the_kernel_ends_for_its_memory_resumes_bit_for_bit(tmp_path, group):
    settings = SETTINGS | {"rounds": 400, "checkpoint_every": 5}
    out = tmp_path / "run"
    process = train(out, settings, enter(group))
    until = time.monotonic() + 600
    while process.poll() is None and not (out / "checkpoints" / "10").exists() and time.monotonic() < until:
        time.sleep(0.01)
    Path(f"/proc/{process.pid}/oom_score_adj").write_text("1000")
    with subprocess.Popen(limited(enter(group), sys.executable, "-c", HOG)) as hog:
        process.communicate(timeout=600)
        hog.kill()
    assert process.returncode == -signal.SIGKILL
    assert saved_rounds(out)[-1] < 400
    finished = [train(path, settings) for path in (out, tmp_path / "whole")]
    assert [process.communicate(timeout=900)[1] for process in finished] == ["", ""]
    assert_same_run(out, tmp_path / "whole")
