"""Runs that survive: killed, stopped by a signal, with damaged checkpoints, in a directory that becomes read-only."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import rscfed_jax as rj
from rscfed_jax.runner import loop
from rscfed_jax.runner.history import History
from tests.helpers import ROOT, SMALL, StopAfter, assert_same_run, flags_of, records_of, run, saved_rounds

SETTINGS = SMALL | {"rounds": 10, "checkpoint_every": 3}
CONFIG = rj.Config(**SETTINGS)
WARM = CONFIG.replace(warmup_rounds=4, checkpoint_every=1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing happened to."""
    out = tmp_path_factory.mktemp("whole") / "run"
    rj.train(CONFIG, out=out)
    return out


KILLED = """
import json, os, signal, sys
import rscfed_jax as rj

settings, out, chunks = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])


def stop():
    global chunks
    chunks -= 1
    if chunks == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return False


rj.train(rj.Config(**settings), out=out, resume=True, stop=stop)
"""


@pytest.mark.parametrize(
    "kills",
    [
        [(3, range(-3, -1))],  # stopped after this many chunks of rounds; the newest checkpoint then
        pytest.param([(3, range(-3, -1)), (8, range(6))], marks=pytest.mark.slow),
    ],
    ids=["in its warm-up", "in its warm-up and in its rounds"],
)
def test_a_killed_run_resumes_bit_for_bit(tmp_path, kills):
    out = tmp_path / "run"
    # The kill comes while a checkpoint is written. Programs are cached for the second process.
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    for chunks, newest in kills:
        command = [sys.executable, "-c", KILLED, json.dumps(WARM.given()), str(out), str(chunks)]
        killed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert saved_rounds(out)[-1] in newest
    rj.train(WARM, out=out, resume=True)
    rj.train(WARM, out=tmp_path / "whole")
    assert_same_run(out, tmp_path / "whole")


@pytest.mark.slow
def test_kills_at_any_moment_leave_no_trace_and_the_soak_goes_on_where_it_was(tmp_path):
    """In a process of its own: it forks, which one with a running JAX may not."""
    for kills, kept in (("3", 0), ("6", 3)):
        command = [sys.executable, ROOT / "benchmarks" / "soak.py", "--kills", kills, "--folder", tmp_path, "--print"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        result = json.loads(lines[-1])
        assert sum(" kills  run " in line for line in lines) == result["runs"] - (kept > 0)
        assert result["kills"] == int(kills)
        assert result["identical"] == result["runs"]
        assert not any(result[name] for name in ("torn_lines", "lost_or_doubled_records", "left_files", "wrong_ends"))


@pytest.mark.parametrize(
    ("number", "code", "warmup", "said"),
    [
        (signal.SIGTERM, 143, 0, "stopped after round "),
        (signal.SIGINT, 130, 0, "stopped after round "),
        (signal.SIGTERM, 143, 4000, "stopped in the warm-up"),
    ],
)
def test_a_signal_saves_and_says_how_to_go_on(tmp_path, monkeypatch, capfd, number, code, warmup, said):
    out, advance = tmp_path / "run", loop.Loop._advance

    def signalled(self, *arguments):
        advance(self, *arguments)
        if self.round == 8 - warmup:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(loop.Loop, "_advance", signalled)
    flags = flags_of(SETTINGS | {"rounds": 4000, "checkpoint_every": 4, "warmup_rounds": warmup})
    assert run("train", *flags, "--out", out, "--quiet") == code
    first, second = capfd.readouterr().err.splitlines()
    assert first == "finishing the current rounds, then stopping; signal again to stop immediately"
    assert second.startswith(said)
    assert second.endswith(f"; `--out {out} --resume` with the same flags continues it")
    if not warmup:
        assert str(saved_rounds(out)[-1]) == second.removeprefix(said).partition(";")[0]
    assert 8 - warmup <= saved_rounds(out)[-1] < 4000 - warmup


def test_a_run_that_ends_while_it_draws_is_not_finished(tmp_path, monkeypatch):
    """A finished cell of a grid is skipped: what it had not written by then, nobody would write."""
    draw = loop.plot_curves

    def killed(runs, path):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "plot_curves", killed)
    with pytest.raises(KeyboardInterrupt):
        rj.grid(CONFIG, {"beta": [0.0]}, out=tmp_path)
    (tmp_path / ".grid.csv.1.part").touch()
    [cell] = (tmp_path / "cells").iterdir()
    (cell / ".curve.png.1.part").touch()
    monkeypatch.setattr(loop, "plot_curves", draw)
    rj.grid(CONFIG, {"beta": [0.0]}, out=tmp_path)
    assert {"curve.png", "summary.json"} <= {file.name for file in cell.iterdir()}
    assert not [*tmp_path.rglob("*.part")]


@pytest.mark.slow
def test_a_signal_from_outside_stops_a_process(tmp_path):
    flags = flags_of(SETTINGS | {"rounds": 100_000, "checkpoint_every": 4})
    command = [sys.executable, "-m", "rscfed_jax", "train", *flags, "--out", str(tmp_path / "run"), "--quiet"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not (tmp_path / "run" / "checkpoints" / "4").exists():
            pass
        process.terminate()
        said = process.communicate(timeout=60)[1].splitlines()
    assert (process.returncode, len(said)) == (143, 2)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x40
    path.write_bytes(content)


def test_a_damaged_checkpoint_is_named_and_the_run_resumes_from_the_one_before(tmp_path, capfd, whole):
    out = shutil.copytree(whole, tmp_path / "run")
    flip(out / "checkpoints" / "10" / "state" / "arrays.npz")
    rj.train(CONFIG, out=out, resume=True)
    [said] = capfd.readouterr().err.splitlines()
    assert f"checkpoint {out}/checkpoints/10 is damaged" in said
    assert saved_rounds(out)[-2:] == [9, 10]
    assert_same_run(out, whole)


def test_a_run_with_damaged_checkpoints_alone_starts_anew(tmp_path, capfd, whole):
    out = shutil.copytree(whole, tmp_path / "run")
    damaged = saved_rounds(out)
    for round_ in damaged:
        flip(out / "checkpoints" / str(round_) / "state" / "arrays.npz")
    rj.train(CONFIG, out=out, resume=True)
    assert len(capfd.readouterr().err.splitlines()) == len(damaged)
    assert_same_run(out, whole)


def test_a_vanished_directory_ends_the_run_in_one_line(tmp_path):
    out = tmp_path / "run"

    def vanish():
        shutil.rmtree(out)
        return False

    with pytest.raises(rj.SettingError, match=r"--out .*/run: .*cannot be written") as error:
        rj.train(CONFIG, out=out, stop=vanish)
    assert "\n" not in str(error.value)
    assert not out.exists()


@pytest.fixture
def read_only():
    """Makes a directory read-only, in a way that binds root as well, and writable again."""
    mounted = []

    def make(path):
        if os.geteuid():
            for inner in (path, *path.rglob("*")):
                inner.chmod(inner.stat().st_mode & ~0o222)
            return
        for options in (["--bind", path, path], ["-o", "remount,bind,ro", path]):
            done = subprocess.run(["mount", *map(str, options)], capture_output=True, check=False)
            if done.returncode:
                pytest.skip("root may write everywhere, and this one may not mount")
            mounted[:] = [path]

    def restore(path):
        if os.geteuid():
            for inner in (path, *path.rglob("*")):
                inner.chmod(inner.stat().st_mode | 0o200)
        while mounted:
            subprocess.run(["umount", str(mounted.pop())], check=True)

    yield make, restore
    while mounted:
        subprocess.run(["umount", str(mounted.pop())], check=False)


def test_a_directory_that_becomes_read_only_ends_the_run_in_one_line_and_what_was_saved_stays_valid(
    tmp_path, capfd, whole, read_only
):
    make_read_only, restore = read_only
    out = tmp_path / "run"
    chunks = iter(range(9))

    def turn_read_only():
        if next(chunks) == 1:  # after round 4, which has no checkpoint; that of round 6 cannot be written
            while not (out / "checkpoints" / "3").exists():
                time.sleep(0.01)
            make_read_only(out)
        return False

    for resume in (False, True):
        with pytest.raises(rj.SettingError, match=r"--out .*/run: .*cannot be written: .*(Read-only|denied)") as error:
            rj.train(CONFIG, out=out, stop=turn_read_only, resume=resume)
        assert "\n" not in str(error.value)
    assert capfd.readouterr().err == ""
    assert saved_rounds(out) == [3]
    assert run("evaluate", out, "--model", SMALL["model"]) == 0
    assert json.loads(capfd.readouterr().out)["round"] == 3
    restore(out)
    rj.train(CONFIG, out=out, resume=True)
    assert_same_run(out, whole)


def test_a_global_model_that_is_not_finite_ends_the_run_and_is_never_saved(tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    with pytest.raises(rj.Stopped):
        rj.train(CONFIG, out=out, stop=StopAfter(1))
    add_rounds = History.add_rounds

    def break_round_5(self, reports, *, first):
        finite = np.arange(first, first + len(reports.finite)) < 5
        add_rounds(self, reports._replace(finite=finite, broken=reports.subsets == 2), first=first)

    monkeypatch.setattr(History, "add_rounds", break_round_5)
    assert run("train", *flags_of(SETTINGS), "--out", out, "--quiet", "--resume") == 3
    [said] = capsys.readouterr().err.splitlines()
    assert "no longer finite after round 5; the clients whose model was not finite or infinitely far away: 2" in said
    assert "the last checkpoint is from an earlier round" in said
    assert saved_rounds(out) == [3]
    assert [record["round"] for record in records_of(out)] == [0, 4]


def test_a_result_that_nobody_reads_is_no_error():
    command = [sys.executable, "-m", "rscfed_jax", "data", "synthetic"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
