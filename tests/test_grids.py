"""Grids: what may vary, what runs together, and what is left behind."""

import csv
import json

import numpy as np
import pytest

import rscfed_jax as rj
from rscfed_jax import grids, group
from rscfed_jax.runner.sweep import Job
from rscfed_jax.config import Config, SettingError
from rscfed_jax.runner.grid import cells_of, parse_axes
from rscfed_jax.storage.run_directory import RunDirectory
from tests.test_cli import TINY, run
from tests.test_experiment import SETTINGS, untimed
from tests.test_survival import StopAfter

CONFIG = Config(**SETTINGS | {"rounds": 4, "eval_every": 2, "checkpoint_every": 2, "method": "rscfed"})
AXES = {"beta": [0.0, 1e4], "tau": [0.5, 1.0]}


def test_values_are_read_as_their_settings_are():
    axes = parse_axes(["beta=0,100,1e4", "labeled-share=0.5,off", "--flip=true,false", "ema_warmup=True"], {})
    assert axes == {
        "beta": [0.0, 100.0, 1e4],
        "labeled_share": [0.5, "off"],
        "flip": [True, False],
        "ema_warmup": [True],
    }


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["bet=1,2"], "--set bet=1,2: must be NAME=VALUE,VALUE,... with NAME one of dataset, "),
        (["beta"], "--set beta: must be NAME=VALUE,VALUE,... with at least one value"),
        (["beta="], "--set beta=: must be NAME=VALUE,VALUE,... with at least one value"),
        (["beta=1,,2"], "--set beta=1,,2: must be NAME=VALUE,VALUE,... with at least one value and no empty one"),
        (["beta=1,1"], "--set beta=1,1: holds a value twice"),
        (["beta=100,1e2"], "--set beta=100,1e2: holds a value twice"),
        (["beta=1", "beta=2"], "--set beta=2: beta is there twice"),
        (["tau=1"], "--set tau=1: --tau is given as well"),
        (["seed=1,2"], "--set seed=1,2: seeds vary by --seeds N"),
        (["beta=x"], "--beta x: must be a number of at least 0"),
        (["flip=maybe"], "--flip maybe: must be true or false"),
    ],
)
def test_wrong_axes_are_refused(texts, said):
    with pytest.raises(SettingError) as error:
        parse_axes(texts, {"tau": 0.5})
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "subset_size=2,9"], "--subset-size 9: must be from 1 to --clients 4"),
        (["--set", "beta=-1,2"], "--beta -1.0: must be a number of at least 0"),
        ([], "--set : is missing"),
        (["--set", "beta=1", "--seeds", "0"], "--seeds 0: must be a whole number from 1 to 9999"),
        (["--set", "beta=1", "--grid-devices", "x"], "--grid-devices x: must be a whole number of at least 1"),
        (["--set", "beta=1", "--grid-devices", "3"], "--grid-devices 3: must divide the number of devices, 1"),
        (["--set", "beta=1", "--cells-at-once", "0"], "--cells-at-once 0: must be a whole number of at least 1"),
        (["--set", "beta=1", "--cells-at-once", "9" * 5000], "must be a whole number of at least 1"),
        (["--set", "beta=1", "--init-from", "nowhere"], "--init-from nowhere: is not a run directory"),
        (["--set", "partition_file=a/b.npz,a-b.npz"], "--set partition_file-a-b.npz, seed 0: two cells would have"),
        (["--set", "beta=1", "--coordinator", "here"], "--coordinator here: needs --num-processes, --process-id"),
    ],
)
def test_a_grid_that_does_not_fit_is_refused_and_writes_nothing(tmp_path, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(tmp_path)
    flags = list(TINY)
    if any("subset_size" in argument for argument in arguments):
        place = flags.index("--subset-size")
        del flags[place : place + 2]
    assert run("grid", *flags, "--out", "grid", *arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_cell_has_a_job_for_each_seed(tmp_path):
    cells = cells_of(CONFIG.given() | {"seed": 5}, AXES, seeds=2, out=tmp_path)
    assert [cell.settings for cell in cells[:2]] == [{"beta": 0.0, "tau": 0.5}, {"beta": 0.0, "tau": 1.0}]
    assert [job.config.seed for job in cells[0].jobs] == [5, 6]
    assert cells[3].jobs[0].directory.path.name == "beta-10000_tau-1-seed5"
    close = cells_of(CONFIG.given(), {"beta": [1234567.0, 1234568.0]}, seeds=1, out=None)
    assert [cell.jobs[0].name for cell in close] == ["beta-1234567.0, seed 0", "beta-1234568.0, seed 0"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A grid that nothing happened to."""
    out = tmp_path_factory.mktemp("whole") / "grid"
    return rj.grid(CONFIG, AXES, out=out), out


def records(directory):
    return untimed(json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines())


def test_a_grid_is_one_program_and_its_cells_are_runs(whole):
    result, out = whole
    assert result.compilations <= 1
    assert result.axes == AXES
    assert len(result.rows) == 4 * 3
    assert [row["round"] for row in result.rows[:3]] == [0, 2, 4]
    assert {"beta", "tau", "seed", "accuracy", "auc", "models_up", "labeled_loss"} <= set(result.rows[0])
    with (out / "grid.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 12
    assert len((out / "summary.md").read_text().splitlines()) == 6
    assert (out / "heatmap.png").stat().st_size > 5_000
    assert json.loads((out / "grid.json").read_text())["groups"] == 1
    alone = rj.train(CONFIG.replace(beta=1e4, tau=1.0))
    cell = out / "cells" / "beta-10000_tau-1-seed0"
    for own, other in zip(records(cell), untimed(alone.metrics), strict=True):
        for name in ("accuracy", "auc", "labeled_loss", "consistency_loss"):
            np.testing.assert_allclose(own[name] or 0, other[name] or 0, atol=1e-4)
    assert result.summary[3]["accuracy"] == pytest.approx(alone.summary["final"]["accuracy"], abs=1e-6)
    # A cell goes on like any other run.
    longer = rj.train(CONFIG.replace(beta=1e4, tau=1.0, rounds=6), out=cell, resume=True)
    assert [record["round"] for record in longer.metrics] == [0, 2, 4, 6]


def test_an_interrupted_grid_goes_on_to_the_same_end(tmp_path, whole):
    with pytest.raises(rj.Stopped, match="after round 2"):
        rj.grid(CONFIG, AXES, out=tmp_path / "grid", stop=StopAfter(2))
    # A kill while checkpoints are written: one cell is ahead of the others.
    for name in ("beta-0_tau-0.5-seed0", "beta-0_tau-1-seed0"):
        assert (tmp_path / "grid" / "cells" / name / "checkpoints" / "2").is_dir()
    result = rj.grid(CONFIG, AXES, out=tmp_path / "grid")
    for row, expected in zip(untimed(result.rows), untimed(whole[0].rows), strict=True):
        assert row == expected
    again = rj.grid(CONFIG, AXES, out=tmp_path / "grid")
    assert again.compilations == 0
    assert again.summary == result.summary


def test_a_group_goes_back_to_the_newest_checkpoint_that_all_cells_have(tmp_path, whole):
    out = tmp_path / "grid"
    config = CONFIG.replace(rounds=6)
    with pytest.raises(rj.Stopped, match="after round 4"):
        rj.grid(config, AXES, out=out, stop=StopAfter(3))
    ahead, behind = (out / "cells" / f"beta-{beta}_tau-1-seed0" for beta in (0, 10000))
    damaged = behind / "checkpoints" / "4" / "state" / "arrays.npz"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    result = rj.grid(config, AXES, out=out)
    assert (behind / "damaged").is_dir()
    rows = [row for row in result.rows if row["round"] < 6]
    assert untimed(rows) == untimed(whole[0].rows)
    assert sorted(int(path.name) for path in (ahead / "checkpoints").iterdir()) == [2, 4, 6]


def test_new_values_run_alone_and_old_cells_stay(tmp_path, monkeypatch):
    out = tmp_path / "grid"
    rj.grid(CONFIG, {"beta": [0.0]}, out=out)
    sizes = []
    together = group.run_together

    def count(experiments, **options):
        sizes.append(len(experiments))
        return together(experiments, **options)

    monkeypatch.setattr(group, "run_together", count)
    result = rj.grid(CONFIG, {"beta": [0.0, 100.0]}, out=out)
    assert sizes == [1]
    assert len(result.summary) == 2


def test_a_cell_that_diverges_does_not_end_the_others(tmp_path, monkeypatch, capsys, whole):
    add_rounds, seen = group.History.add_rounds, []

    def break_the_second(self, reports, *, first):
        seen.append(first)
        if first == 3 and seen.count(3) == 2:
            raise rj.DivergedError("the global model is no longer finite")
        add_rounds(self, reports, first=first)

    monkeypatch.setattr(group.History, "add_rounds", break_the_second)
    result = rj.grid(CONFIG, AXES, out=tmp_path / "grid")
    assert "beta-0_tau-1, seed 0: the global model is no longer finite; the others go on" in capsys.readouterr().err
    assert [row["diverged"] for row in result.summary] == [0, 1, 0, 0]
    assert result.summary[1]["accuracy"] is None
    assert "diverged" in grids.summary_lines(result)[2]
    assert result.summary[2] == whole[0].summary[2]
    cell = tmp_path / "grid" / "cells" / "beta-0_tau-1-seed0"
    assert json.loads((cell / "diverged.json").read_text())["round"] == 4
    assert [record["round"] for record in records(cell)] == [0, 2]
    again = rj.grid(CONFIG, AXES, out=tmp_path / "grid")
    assert (again.compilations, again.summary) == (0, result.summary)


def test_a_cell_alone_in_its_program_may_diverge_too(tmp_path, monkeypatch, capsys):
    def diverge(self, reports, *, first):
        raise rj.DivergedError("the global model is no longer finite")

    monkeypatch.setattr(group.History, "add_rounds", diverge)
    result = rj.grid(CONFIG, {"beta": [0.0]}, out=tmp_path / "grid")
    assert (result.summary[0]["diverged"], result.summary[0]["accuracy"]) == (1, None)
    assert "the others go on" in capsys.readouterr().err
    cell = tmp_path / "grid" / "cells" / "beta-0-seed0"
    assert Job("", CONFIG, RunDirectory(cell)).finished
    # Nor is it run again for more rounds if it has a summary of fewer.
    (cell / "summary.json").write_text('{"final": {}, "best": {}, "rounds": 1}')
    longer = rj.grid(CONFIG.replace(rounds=CONFIG.rounds + 2), {"beta": [0.0]}, out=tmp_path / "grid")
    assert (longer.compilations, longer.summary[0]["diverged"]) == (0, 1)
    # Continued by itself, it is a run like any other.
    monkeypatch.undo()
    rj.train(CONFIG.replace(beta=0.0), out=cell, resume=True)
    assert not (cell / "diverged.json").exists()
    assert rj.grid(CONFIG, {"beta": [0.0]}, out=tmp_path / "grid").summary[0]["diverged"] == 0


def test_values_may_be_numpys():
    config = Config(subsets=np.int64(2), flip=np.bool_(True), beta=np.float32(0.5))
    assert json.loads(json.dumps(config.to_dict())) == Config(subsets=2, flip=True, beta=0.5).to_dict()
    with pytest.raises(rj.SettingError, match=r"--set beta=1.0,1.0: holds a value twice"):
        rj.grid(CONFIG, {"beta": np.ones(2)})


def test_means_and_deviations_are_over_seeds():
    def summary(accuracy):
        return {"final": dict.fromkeys(grids.METRICS, accuracy), "best": {"accuracy": accuracy + 0.1}}

    row = grids._summary({"beta": 1.0}, [summary(0.5), summary(0.7), None])
    assert row["accuracy"] == pytest.approx(0.6)
    assert row["accuracy_std"] == pytest.approx(np.std([0.5, 0.7], ddof=1))
    assert (row["seeds"], row["diverged"], row["best_accuracy_oracle"]) == (3, 1, pytest.approx(0.7))


def test_the_dry_run_shows_cells_groups_memory_and_time(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = ["--set", "beta=0,100", "--set", "rounds=1,2", "--dry-run"]
    assert run("grid", *TINY, *flags) == 0
    out = capsys.readouterr().out
    assert "group 2: 2 cells as one program, 0.0" in out
    assert "beta-100_rounds-2, seed 0" in out
    assert "4 runs, 0 of them finished; 2 programs" in out
    assert list(tmp_path.iterdir()) == []


def test_a_grid_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rounds = ["--rounds", "4", "--eval-every", "2", "--checkpoint-every", "2", "--quiet"]
    assert run("grid", *TINY, *rounds, "--set", "beta=0,10000", "--set", "tau=0.5,1", "--out", "grid") == 0
    out = capsys.readouterr().out
    assert "4 runs, " in out
    assert "heatmap.png" in out
    assert out.splitlines()[0].split() == ["beta", "tau", "seeds", *grids.METRICS, "best_oracle"]
