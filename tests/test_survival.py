"""Runs that survive: stopped, killed, out of disk, with damaged checkpoints, with two writers."""

import contextlib
import errno
import importlib.util
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import rscfed_jax as rj
from rscfed_jax import arrays, group, progress
from rscfed_jax.storage.checkpoint import Checkpoints, NewestAndBest, decode, read_together
from rscfed_jax.config import Config
from rscfed_jax.runner.progress import RunProgress
from rscfed_jax.storage.run_directory import RunDirectory, write_json
from tests.conftest import assert_trees_equal
from tests.test_cli import TINY, run
from tests.test_experiment import SETTINGS, untimed

# One program serves all of these: evaluations every 4 rounds, checkpoints at rounds of their own.
CONFIG = rj.Config(**SETTINGS | {"rounds": 10, "eval_every": 4, "checkpoint_every": 3, "method": "sso"})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing happened to."""
    out = tmp_path_factory.mktemp("whole") / "run"
    return rj.train(CONFIG, out=out), out


class StopAfter:
    """Asks a run to stop after so many chunks of rounds."""

    def __init__(self, chunks):
        self.left = chunks

    def __call__(self):
        """Whether to stop now."""
        self.left -= 1
        return self.left <= 0


def lines(out):
    return [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]


def assert_same_run(result, out, whole):
    expected, expected_out = whole
    assert_trees_equal(result.model, expected.model)
    assert_trees_equal(result.best_model, expected.best_model)
    assert untimed(result.metrics) == untimed(expected.metrics)
    assert untimed(lines(out)) == untimed(lines(expected_out)) == untimed(expected.metrics)
    timed = ("seconds_per_round", "compile_seconds")
    summaries = [json.loads((Path(path) / "summary.json").read_text()) for path in (out, expected_out)]
    assert [{k: v for k, v in s.items() if k not in timed} for s in summaries[:1]] == [
        {k: v for k, v in summaries[1].items() if k not in timed}
    ]


def steps(out):
    return sorted(int(path.name) for path in (Path(out) / "checkpoints").iterdir() if path.name.isdecimal())


def test_a_stop_between_evaluations_leaves_no_trace_in_the_resumed_run(tmp_path, whole):
    out = tmp_path / "run"
    for chunks, stopped_at in ((1, 3), (1, 4), (2, 8)):
        with pytest.raises(rj.Stopped, match=f"after round {stopped_at}"):
            rj.train(CONFIG, out=out, resume=True, stop=StopAfter(chunks))
        assert stopped_at in steps(out)
    assert [record["round"] for record in lines(out)] == [0, 4, 8]
    assert_same_run(rj.train(CONFIG, out=out, resume=True), out, whole)


def test_a_checkpoint_holds_the_clients_that_were_selected(tmp_path):
    config = Config(**SETTINGS | {"clients": 12, "min_client_size": 2, "rounds": 1, "method": "sso"})
    result = rj.train(config, out=tmp_path / "run")
    with Checkpoints(tmp_path / "run" / "checkpoints", read_only=True) as checkpoints:
        arrays = checkpoints.read(1, warn=pytest.fail)
    selected = sorted(map(int, result.metrics[-1]["client_weights"]))
    assert arrays["state.rows"].tolist() == selected
    assert len(selected) < 12
    assert arrays["state.clients.step"].shape == (len(selected),)
    state = result.simulation.state
    like = jax.device_get(state._replace(key=jax.random.key_data(state.key)))
    stored = decode(arrays, like, clients=12, out=None)
    chosen = jax.tree.map(lambda leaf: leaf[stored.rows], like.clients)
    assert_trees_equal(stored.state, like._replace(clients=chosen))
    rest = jax.tree.map(lambda leaf: np.delete(leaf, stored.rows, axis=0), like.clients)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(rest))


def test_runs_without_a_checkpoint_in_common_are_refused_and_keep_theirs(tmp_path):
    class Run:
        def __init__(self, name, rounds):
            self.directory, self.saved = tmp_path / name / "checkpoints", rounds

        def rounds(self):
            return self.saved

    with pytest.raises(rj.SettingError, match=r"--out .*/b: its group has no valid checkpoint in common"):
        read_together([Run("a", set()), Run("b", {20, 30})], warn=pytest.fail)
    assert read_together([Run("a", set()), Run("b", set())], warn=pytest.fail) is None


def test_a_longer_run_forgets_the_last_evaluation_that_it_would_not_have_made(tmp_path, whole):
    out = tmp_path / "run"
    first = rj.train(CONFIG.replace(rounds=6), out=out)
    assert [record["round"] for record in first.metrics] == [0, 4, 6]
    again = rj.train(CONFIG.replace(rounds=6), out=out, resume=True)
    assert untimed(again.metrics) == untimed(first.metrics)
    assert_same_run(rj.train(CONFIG, out=out, resume=True), out, whole)


def test_the_newest_and_the_best_checkpoints_are_kept(whole):
    result, out = whole
    evaluated = {record["round"]: record["accuracy"] for record in result.metrics if record["round"]}
    assert set(steps(out)) >= {6, 9, 10}
    best = result.summary["best"]["round"]
    with Checkpoints(out / "checkpoints", read_only=True) as checkpoints:
        arrays = checkpoints.read(10, warn=pytest.fail)
    like = jax.device_get(result.simulation.state._replace(key=jax.random.key_data(result.simulation.state.key)))
    history = decode(arrays, like, clients=CONFIG.clients, out=out).history
    if best <= 8:
        assert_trees_equal(history.best_model, result.best_model)
    assert evaluated[best] == max(evaluated.values())

    class Step:
        def __init__(self, step):
            self.step = step

    policy = NewestAndBest()
    policy.accuracy = {3: 0.5, 6: 0.9, 9: 0.2}
    assert (
        policy.should_preserve([Step(r) for r in range(3, 24, 3)], context=None)
        == [False, True, False, False] + [True] * 3
    )


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x40
    path.write_bytes(content)


DAMAGES = {
    "a changed byte": lambda newest: flip(newest / "state" / "arrays.npz"),
    "a cut file": lambda newest: os.truncate(newest / "state" / "arrays.npz", 100),
    "a lost file": lambda newest: (newest / "best" / "arrays.npz").unlink(),
    "an empty directory": lambda newest: (shutil.rmtree(newest), newest.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(tmp_path, capfd, whole, damage):
    out = shutil.copytree(whole[1], tmp_path / "run")
    DAMAGES[damage](out / "checkpoints" / "10")
    result = rj.train(CONFIG, out=out, resume=True)
    said = capfd.readouterr().err
    assert f"checkpoint {out}/checkpoints/10 is damaged" in said
    assert len(said.splitlines()) == 1
    assert steps(out)[-2:] == [9, 10]
    assert_same_run(result, out, whole)


def test_a_run_with_damaged_checkpoints_alone_starts_anew(tmp_path, capfd, whole):
    out = shutil.copytree(whole[1], tmp_path / "run")
    damaged = steps(out)
    for step in damaged:
        flip(out / "checkpoints" / str(step) / "state" / "arrays.npz")
    result = rj.train(CONFIG, out=out, resume=True)
    assert len(capfd.readouterr().err.splitlines()) == len(damaged)
    assert_same_run(result, out, whole)


def test_a_checkpoint_that_cannot_be_read_now_is_not_taken_for_damaged(tmp_path, monkeypatch, whole):
    def fail(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    out = shutil.copytree(whole[1], tmp_path / "run")
    monkeypatch.setattr(arrays, "read_arrays", fail)
    with pytest.raises(rj.SettingError, match=r"--out .*checkpoints/10: cannot be read now: .*Input/output error"):
        rj.train(CONFIG, out=out, resume=True)
    assert not (out / "damaged").exists()
    monkeypatch.undo()
    assert_same_run(rj.train(CONFIG, out=out, resume=True), out, whole)


def test_evaluate_takes_the_newest_valid_model(tmp_path, capfd, whole):
    out = shutil.copytree(whole[1], tmp_path / "run")
    flip(out / "checkpoints" / "10" / "model" / "arrays.npz")
    assert run("evaluate", out) == 0
    printed, said = capfd.readouterr()
    assert json.loads(printed)["round"] == 9
    assert "checkpoints/10 is damaged" in said
    for step in steps(out):
        shutil.rmtree(out / "checkpoints" / str(step) / "model")
    assert run("evaluate", out) == 2
    assert "holds no valid checkpoint" in capfd.readouterr().err


def test_a_finished_run_says_so_even_when_quiet(tmp_path, capfd, whole):
    out = shutil.copytree(whole[1], tmp_path / "run")
    before = (out / "summary.json").read_bytes()
    result = rj.train(CONFIG, out=out, resume=True)
    assert "the run is finished: 10 rounds" in capfd.readouterr().err
    assert (out / "summary.json").read_bytes() == before
    assert_same_run(result, out, whole)


def test_a_run_goes_on_with_other_devices_but_not_with_other_data(tmp_path, whole):
    out = shutil.copytree(whole[1], tmp_path / "run")
    elsewhere = CONFIG.replace(devices=2, chunk=1, data_dir="elsewhere", rounds=11)
    assert rj.train(elsewhere, out=out, resume=True).metrics[-1]["round"] == 11
    before = (out / "config.json").read_bytes()
    other = rj.build_federation(CONFIG.replace(seed=1))
    with pytest.raises(rj.SettingError, match=r"--resume .*: the run there has other data: class_counts, labels of"):
        rj.train(elsewhere.replace(rounds=12), out=out, resume=True, federation=other)
    assert (out / "config.json").read_bytes() == before


def test_a_second_writer_is_refused_while_the_first_lives(tmp_path):
    first, second = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "run")
    with first.open(CONFIG, {}, resume=False):
        with pytest.raises(rj.SettingError, match="another run is writing there"), second.open(CONFIG, {}, resume=True):
            pytest.fail("two runs in one directory")
        code = "import os, sys; sys.argv.pop(0); from rscfed_jax.cli import main; sys.exit(main(sys.argv))"
        flags = [*TINY, "--rounds", "10", "--eval-every", "4", "--checkpoint-every", "3", "--method", "sso"]
        command = [sys.executable, "-c", code, "train", *flags, "--out", str(tmp_path / "run"), "--resume", "--quiet"]
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
        assert refused.returncode == 2
        assert len(refused.stderr.splitlines()) == 1
        assert "another run is writing there" in refused.stderr
    with second.open(CONFIG, {}, resume=True):
        pass
    with pytest.raises(rj.SettingError, match="holds a run already"), second.open(CONFIG, {}, resume=False):
        pytest.fail("the directory holds a run")


def test_a_dead_process_holds_no_lock(tmp_path):
    code = (
        "import os, sys; from rscfed_jax import Config; from rscfed_jax.storage.run_directory import RunDirectory\n"
        "with RunDirectory(sys.argv[1]).open(Config(), {}, resume=False):\n    os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], check=False)
    assert killed.returncode == -signal.SIGKILL
    with RunDirectory(tmp_path / "run").open(rj.Config(), {}, resume=True):
        pass


def test_a_vanished_directory_ends_the_run_in_one_line(tmp_path):
    out = tmp_path / "run"

    def vanish():
        shutil.rmtree(out)
        return False

    with pytest.raises(rj.SettingError, match=r"--out .*/run: .*cannot be written") as error:
        rj.train(CONFIG, out=out, stop=vanish)
    assert "\n" not in str(error.value)
    assert not out.exists()


def test_a_file_has_its_content_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """After a power loss a file that was renamed too early is there, and empty."""
    done = []
    monkeypatch.setattr(os, "fsync", lambda number: done.append(os.fstat(number).st_size))
    monkeypatch.setattr(Path, "replace", lambda self, target: done.append(target.name))
    write_json(tmp_path / "config.json", {"rounds": 3})
    assert done == [len('{\n  "rounds": 3\n}\n'), "config.json"]


@pytest.mark.parametrize("out", ["/proc/run", "file/run", "/dev/null"])
def test_a_place_that_cannot_be_written_is_refused(tmp_path, monkeypatch, capsys, out):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert run("train", *TINY, "--out", out) == 2
    said = capsys.readouterr().err
    assert f"--out {out}: " in said
    assert said.count("\n") == 1


def test_a_full_disk_ends_in_one_line_and_what_was_saved_stays_valid(tmp_path, capfd, whole):
    out = tmp_path / "run"
    with pytest.raises(rj.Stopped):
        rj.train(CONFIG, out=out, stop=StopAfter(1))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(rj.SettingError, match=r"--out .*cannot be written") as error:
            rj.train(CONFIG, out=out, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(error.value)
    assert capfd.readouterr().err == ""
    assert steps(out) == [3]
    assert_same_run(rj.train(CONFIG, out=out, resume=True), out, whole)


@pytest.fixture
def read_only():
    """Makes a directory read-only, in a way that binds root as well."""
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
            make_read_only(out)
        return False

    for resume in (False, True):
        with pytest.raises(rj.SettingError, match=r"--out .*/run: .*cannot be written: .*(Read-only|denied)") as error:
            rj.train(CONFIG, out=out, stop=turn_read_only, resume=resume)
        assert "\n" not in str(error.value)
    assert capfd.readouterr().err == ""
    assert steps(out) == [3]
    assert run("evaluate", out) == 0
    assert json.loads(capfd.readouterr().out)["round"] == 3
    restore(out)
    assert_same_run(rj.train(CONFIG, out=out, resume=True), out, whole)


def test_a_global_model_that_is_not_finite_ends_the_run_and_is_never_saved(tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    flags = [*TINY, "--rounds", "10", "--eval-every", "4", "--checkpoint-every", "3", "--method", "sso"]
    arguments = ["train", *flags, "--out", out, "--quiet", "--resume"]
    with pytest.raises(rj.Stopped):
        rj.train(CONFIG, out=out, stop=StopAfter(1))
    add_rounds = group.History.add_rounds

    def break_round_5(self, reports, *, first):
        finite = np.arange(first, first + len(reports.finite)) < 5
        distances = np.where(reports.subsets == 2, np.inf, reports.distances)
        add_rounds(self, reports._replace(finite=finite, distances=distances), first=first)

    monkeypatch.setattr(group.History, "add_rounds", break_round_5)
    assert run(*arguments) == 3
    said = capsys.readouterr().err
    assert "no longer finite after round 5" in said
    assert "endlessly far away: 2" in said or "took part: " in said
    assert said.count("\n") == 1
    assert steps(out) == [3]


def start(out, cache, *more):
    flags = [*TINY, "--method", "sso", "--rounds", "400", "--eval-every", "50", "--checkpoint-every", "10"]
    command = [sys.executable, "-m", "rscfed_jax", "train", *flags, "--out", str(out), "--resume", "--quiet", *more]
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)


def wait_for(condition, process, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_a_signal_saves_and_says_how_to_go_on(tmp_path, cache, number, code):
    with start(tmp_path / "run", cache) as process:
        wait_for(lambda: (tmp_path / "run" / "checkpoints" / "10").exists(), process)
        process.send_signal(number)
        said = process.communicate(timeout=60)[1].splitlines()
    assert process.returncode == code
    assert said[0] == "stopping after the rounds under way; once more stops at once"
    stopped = int(said[1].split("after round ")[1].split(";")[0])
    assert f"--out {tmp_path / 'run'} --resume" in said[1]
    assert steps(tmp_path / "run")[-1] == stopped
    assert len(said) == 2


def test_a_second_signal_stops_at_once(tmp_path):
    code = (
        "import time; from rscfed_jax.runner.signals import StopSignals\n"
        "with StopSignals() as signals:\n    print(flush=True)\n    time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert b"once more stops at once" in process.stderr.readline()
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 143


@pytest.mark.slow
def test_three_kills_leave_no_trace(tmp_path):
    path = Path(__file__).parents[1] / "benchmarks" / "soak.py"
    soak = importlib.util.module_from_spec(importlib.util.spec_from_file_location("soak", path))
    soak.__spec__.loader.exec_module(soak)
    [outcome] = soak.soak(tmp_path, runs=1, kills=3, workers=1)
    assert outcome.kills > 0
    assert outcome.identical
    assert outcome.torn == 0


def test_a_run_goes_on_when_nobody_watches_it_any_more(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    pipe = open(writer, "w")  # noqa: SIM115 - closing it fails
    try:
        monkeypatch.setattr(sys, "stderr", pipe)
        with RunProgress(2) as shown:
            shown.say("compiling the round")
            shown.update(2, accuracy=0.5, seconds_per_round=1.0)
            shown.say("saved")
        assert shown.console.quiet
    finally:
        with contextlib.suppress(BrokenPipeError):
            pipe.close()


def test_a_line_tells_the_time_left(capsys, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    with RunProgress(1000) as shown:
        shown.update(40, accuracy=0.5, seconds_per_round=1.7)
    assert capsys.readouterr().err == "round 40/1000  accuracy 50.0%  1.70 s/round  0:27:12 left\n"


def test_a_result_that_nobody_reads_is_no_error():
    command = [sys.executable, "-m", "rscfed_jax", "data", "synthetic"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
