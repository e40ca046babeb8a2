"""Grids: what may vary, what runs together, and what is left behind."""

import csv
import dataclasses
import json
import shutil

import numpy as np
import pytest

import rscfed_jax as rj
from rscfed_jax.config import Config, SettingError
from rscfed_jax.config.registry import metrics
from rscfed_jax.runner import compiled, grid, together
from rscfed_jax.runner.build import Objects
from rscfed_jax.runner.grid import parse_axes, points_of
from rscfed_jax.runner.history import History
from rscfed_jax.runner.sweep import Cell
from rscfed_jax.storage.run_directory import RunDirectory
from tests.helpers import SMALL, StopAfter, TinyNetwork, assert_same_run, records_of, saved_rounds, untimed

CONFIG = Config(**SMALL | {"checkpoint_every": 2})
AXES = {"beta": [0.0, 1e4], "tau": [0.5, 1.0]}


def test_values_are_read_as_their_settings_are():
    axes = parse_axes(
        ["beta=0,100,1e4", "labeled-share=0.5,off", "--flip=true,false", "ema_warmup=True", "fedirm-factor=1,2"], {}
    )
    assert axes == {
        "beta": [0.0, 100.0, 1e4],
        "labeled_share": [0.5, "off"],
        "flip": [True, False],
        "ema_warmup": [True],
        "fedirm_factor": [1.0, 2.0],
    }


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["bet=1,2"], "--set bet=1,2: must be NAME=VALUE,VALUE,... with NAME one of dataset, "),
        (["beta"], "--set beta: must be NAME=VALUE,VALUE,... with at least one value"),
        (["beta="], "--set beta=: must be NAME=VALUE,VALUE,... with at least one value"),
        (["beta=1,,2"], "--set beta=1,,2: must be NAME=VALUE,VALUE,... with at least one value, none of them empty"),
        (["beta=1,1"], "--set beta=1,1: holds a value twice"),
        (["beta=100,1e2"], "--set beta=100,1e2: holds a value twice"),
        (["beta=1", "beta=2"], "--set beta=2: beta appears twice"),
        (["tau=1"], "--set tau=1: --tau is also given"),
        (["seed=1,2"], "--set seed=1,2: to vary the seed, give --seeds N"),
        (["beta=x"], "--beta x: must be a number of at least 0"),
        (["flip=maybe"], "--flip maybe: must be true or false"),
    ],
)
def test_wrong_axes_are_refused(texts, said):
    with pytest.raises(SettingError) as error:
        parse_axes(texts, {"tau": 0.5})
    assert said in str(error.value)


def test_a_point_has_a_cell_for_each_seed(tmp_path):
    points = points_of(CONFIG.given() | {"seed": 5}, AXES, seeds=2, out=tmp_path)
    assert [point.settings for point in points[:2]] == [{"beta": 0.0, "tau": 0.5}, {"beta": 0.0, "tau": 1.0}]
    assert [cell.config.seed for cell in points[0].cells] == [5, 6]
    assert points[3].cells[0].directory.path.name == "beta-10000_tau-1-seed5"
    close = points_of(CONFIG.given(), {"beta": [1234567.0, 1234568.0]}, seeds=1, out=None)
    assert [point.cells[0].name for point in close] == ["beta-1234567.0, seed 0", "beta-1234568.0, seed 0"]


def test_points_that_do_not_fit_are_refused():
    for axes, said in [
        ({"subset_size": [2, 11]}, "--subset-size 11: must be from 1 to --clients 10"),
        ({"partition_file": ["a/b.npz", "a-b.npz"]}, "partition_file-a-b.npz, seed 0: two cells would have this name"),
        ({"method": ["sso", "fedirm"], "fedirm_factor": [1.0]}, "--set fedirm_factor: belongs to one method"),
        ({"method": ["sso"], "fedirm_factor": [1.0]}, "--fedirm-factor 1.0: is a setting of the method fedirm, which"),
    ]:
        with pytest.raises(SettingError) as error:
            points_of(CONFIG.given(), axes, seeds=1, out=None)
        assert said in str(error.value)


def test_a_methods_own_number_varies_with_the_method_alone():
    points = points_of(CONFIG.given() | {"method": "fedirm"}, {"fedirm_factor": [1.0, 2.0]}, seeds=1, out=None)
    assert [point.cells[0].config.own["factor"] for point in points] == [1.0, 2.0]
    settings = CONFIG.given() | {"fedirm_factor": 3.0}
    fedirm, sso = points_of(settings, {"method": ["fedirm", "sso"]}, seeds=1, out=None)
    assert (fedirm.cells[0].config.own["factor"], sso.cells[0].config.own) == (3.0, {})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A grid that nothing happened to, in a process that knows no program yet."""
    out = tmp_path_factory.mktemp("whole") / "grid"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "_COMPILED", {})
        result = rj.grid(CONFIG, AXES, out=out)
        assert len(compiled._COMPILED) == result.compilations
    return result, out


def test_a_grid_is_one_program_and_its_cells_are_runs(whole):
    result, out = whole
    assert result.compilations == 1
    assert result.axes == AXES
    assert len(result.rows) == 4 * 2
    assert [row["round"] for row in result.rows[:2]] == [0, 4]
    assert {"beta", "tau", "seed", "models_up", "labeled_loss", *metrics()} <= set(result.rows[0])
    with (out / "grid.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 8
    assert len((out / "summary.md").read_text().splitlines()) == 6
    assert (out / "heatmap.png").stat().st_size > 5_000
    assert json.loads((out / "grid.json").read_text()) == {"axes": AXES, "programs": 1, "compilations": 1}
    cell = out / "cells" / "beta-10000_tau-1-seed0"
    alone = rj.train(CONFIG.replace(beta=1e4, tau=1.0))
    for own, other in zip(records_of(cell), untimed(alone.metrics), strict=True):
        for name in ("accuracy", "auc", "labeled_loss", "consistency_loss"):
            np.testing.assert_allclose(own[name] or 0, other[name] or 0, atol=1e-4)
    assert result.summary[3]["accuracy"] == pytest.approx(alone.summary["final"]["accuracy"], abs=1e-6)
    assert result.summary[3] != result.summary[0] | {"beta": 1e4, "tau": 1.0}


@pytest.mark.parametrize("left", [None, '{"axes": {"beta": [0.0]}, "programs": 1, "compilations": 1}', '{"axes": '])
def test_facts_that_a_kill_left_out_are_written_when_the_grid_is_run_again(tmp_path, whole, left):
    """All cells are finished then, so nothing is run."""
    out = shutil.copytree(whole[1], tmp_path / "grid")
    before = (out / "grid.json").read_bytes()
    rj.grid(CONFIG, AXES, out=out)
    assert (out / "grid.json").read_bytes() == before
    (out / "grid.json").unlink()
    if left is not None:
        (out / "grid.json").write_text(left)
    rj.grid(CONFIG, AXES, out=out)
    assert json.loads((out / "grid.json").read_text()) == {"axes": AXES, "programs": 0, "compilations": 0}


def test_a_cell_resumes_alone_like_any_other_run(tmp_path):
    rj.grid(CONFIG, {"beta": [3.0]}, out=tmp_path)
    cell = tmp_path / "cells" / "beta-3-seed0"
    longer = rj.train(CONFIG.replace(beta=3.0, rounds=8), out=cell, resume=True)
    assert [record["round"] for record in longer.metrics] == [0, 4, 8]


def test_an_interrupted_grid_resumes_to_the_same_end(tmp_path, whole):
    with pytest.raises(rj.Stopped, match="after round 2"):
        rj.grid(CONFIG, AXES, out=tmp_path, stop=StopAfter(2))
    result = rj.grid(CONFIG, AXES, out=tmp_path)
    assert untimed(result.rows) == untimed(whole[0].rows)
    for cell in (tmp_path / "cells").iterdir():
        assert_same_run(cell, whole[1] / "cells" / cell.name)
    again = rj.grid(CONFIG, AXES, out=tmp_path)
    assert (again.compilations, again.summary) == (0, result.summary)


def test_a_program_goes_back_to_the_newest_checkpoint_that_all_its_cells_have(tmp_path, whole):
    config = CONFIG.replace(rounds=8)
    with pytest.raises(rj.Stopped, match="after round 4"):
        rj.grid(config, AXES, out=tmp_path, stop=StopAfter(3))
    ahead, behind = (tmp_path / "cells" / f"beta-{beta}_tau-1-seed0" for beta in (0, 10000))
    damaged = behind / "checkpoints" / "4" / "state" / "arrays.npz"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    result = rj.grid(config, AXES, out=tmp_path)
    assert (behind / "damaged").is_dir()
    assert untimed(row for row in result.rows if row["round"] < 8) == untimed(whole[0].rows)
    assert saved_rounds(ahead)[-3:] == [4, 6, 8]


def test_new_values_run_alone_and_old_cells_stay(tmp_path, monkeypatch):
    rj.grid(CONFIG, {"beta": [0.0]}, out=tmp_path)
    sizes, run_together = [], together.run_together

    def count(experiments, **options):
        sizes.append(len(experiments))
        return run_together(experiments, **options)

    monkeypatch.setattr(together, "run_together", count)
    result = rj.grid(CONFIG, {"beta": [0.0, 100.0]}, out=tmp_path)
    assert sizes == [1]
    assert len(result.summary) == 2


def test_cells_without_a_directory_and_at_most_one_at_once(whole):
    result = rj.grid(CONFIG.replace(tau=1.0), {"beta": [1e4]}, seeds=2, cells_at_once=1)
    assert [row["seeds"] for row in result.summary] == [2]
    assert [row["seed"] for row in result.rows] == [0, 0, 1, 1]
    assert result.rows[1]["accuracy"] == pytest.approx(whole[0].rows[7]["accuracy"], abs=1e-6)


def test_a_cell_that_diverges_does_not_end_the_others(tmp_path, monkeypatch, capsys, whole):
    add_rounds, seen = History.add_rounds, []

    def break_the_second(self, reports, *, first):
        seen.append(first)
        if first == 3 and seen.count(3) == 2:
            raise rj.DivergedError("the global model is no longer finite")
        add_rounds(self, reports, first=first)

    monkeypatch.setattr(History, "add_rounds", break_the_second)
    result = rj.grid(CONFIG, AXES, out=tmp_path)
    said = capsys.readouterr().err
    assert said == "beta-0_tau-1, seed 0: the global model is no longer finite; the others continue\n"
    assert [row["diverged"] for row in result.summary] == [0, 1, 0, 0]
    assert result.summary[1]["accuracy"] is None
    assert "diverged" in grid.summary_lines(result)[2]
    assert result.summary[2] == whole[0].summary[2]
    cell = tmp_path / "cells" / "beta-0_tau-1-seed0"
    assert json.loads((cell / "diverged.json").read_text())["round"] == 4
    assert [record["round"] for record in records_of(cell)] == [0]
    assert saved_rounds(cell) == [2]
    again = rj.grid(CONFIG, AXES, out=tmp_path)
    assert (again.compilations, again.summary) == (0, result.summary)


def test_a_cell_alone_in_its_program_may_diverge_too(tmp_path, monkeypatch, capsys):
    def diverge(self, reports, *, first):
        raise rj.DivergedError("the global model is no longer finite")

    monkeypatch.setattr(History, "add_rounds", diverge)
    result = rj.grid(CONFIG, {"beta": [0.0]}, out=tmp_path)
    assert (result.summary[0]["diverged"], result.summary[0]["accuracy"]) == (1, None)
    assert "the others continue" in capsys.readouterr().err
    cell = tmp_path / "cells" / "beta-0-seed0"
    assert Cell("", CONFIG, RunDirectory(cell)).finished
    # Nor is it run again for more rounds if it has a summary of fewer.
    (cell / "summary.json").write_text('{"final": {}, "best": {}, "rounds": 1}')
    longer = rj.grid(CONFIG.replace(rounds=CONFIG.rounds + 4), {"beta": [0.0]}, out=tmp_path)
    assert (longer.compilations, longer.summary[0]["diverged"]) == (0, 1)
    # Continued by itself, it is a run like any other.
    monkeypatch.undo()
    rj.train(CONFIG.replace(beta=0.0), out=cell, resume=True)
    assert not (cell / "diverged.json").exists()
    assert rj.grid(CONFIG, {"beta": [0.0]}, out=tmp_path).summary[0]["diverged"] == 0


@pytest.mark.parametrize(
    ("axes", "options", "said"),
    [
        ({"beta": np.ones(2)}, {}, "--set beta=1.0,1.0: holds a value twice"),
        ({"beta": [1, "off"]}, {}, "--beta off: must be a number"),
        ({"bet": [1]}, {}, "--set bet=1: must be NAME=VALUE"),
        ({"beta": []}, {}, "--set beta=: must be NAME=VALUE"),
        ({"beta": [1]}, {"seeds": 0}, "--seeds 0: must be a whole number from 1 to 9999"),
        ({"beta": [1]}, {"grid_devices": 0}, "--grid-devices 0: must be a whole number of at least 1"),
        ({"beta": [1]}, {"cells_at_once": 0}, "--cells-at-once 0: must be a whole number of at least 1"),
        ({"beta": [1]}, {"grid_devices": 3}, "--grid-devices 3: must divide the number of devices, 1"),
    ],
)
def test_a_wrong_grid_is_refused_from_python_too(tmp_path, axes, options, said):
    with pytest.raises(SettingError) as error:
        rj.grid(CONFIG, axes, out=tmp_path / "grid", **options)
    assert said in str(error.value)
    assert not (tmp_path / "grid").exists()


def test_values_may_be_numpys(tmp_path):
    result = rj.grid(CONFIG, {"beta": np.array([0.5], np.float32), "flip": [np.bool_(False)]}, out=tmp_path)
    assert result.axes == {"beta": [0.5], "flip": [False]}
    assert json.loads((tmp_path / "grid.json").read_text())["axes"] == result.axes


def test_means_and_deviations_are_over_seeds():
    def summary(accuracy, **more):
        return {"final": dict.fromkeys(metrics(), accuracy) | more, "best": {"accuracy": accuracy + 0.1}}

    row = grid._summary({"beta": 1.0}, [summary(0.5, f1=None), summary(0.7, f1=0.2), None])
    assert row["accuracy"] == pytest.approx(0.6)
    assert row["accuracy_std"] == pytest.approx(np.std([0.5, 0.7], ddof=1))
    assert (row["seeds"], row["diverged"], row["best_accuracy_oracle"]) == (3, 1, pytest.approx(0.7))
    assert (row["f1"], row["f1_std"]) == (0.2, None)  # of a version that did not have it


def test_a_method_cannot_vary_where_one_is_given_as_an_object():
    mine = Objects(rj.Method(name="mine", sample=rj.AllClients()))
    with pytest.raises(SettingError, match="--set method: cannot vary if it is given as an object"):
        points_of({}, {"method": ["sso", "rscfed"]}, seeds=1, out=None, objects=mine)


def test_what_an_object_has_settled_cannot_vary_beside_it():
    config = Config(**SMALL | {"method": "fixmatch", "strong": "weak"})
    parts = rj.METHODS["fixmatch"](config)
    mine = Objects(dataclasses.replace(parts, name="mine", sample=rj.RandomSubsets(2, 3)))
    for axes in ({"subsets": [1, 3]}, {"distance": ["l2", "sum"]}, {"strong": ["weak", "randaugment"]}):
        with pytest.raises(SettingError, match=f"--set {next(iter(axes))}: was decided when the method was made"):
            points_of(config.settings(), axes, seeds=1, out=None, objects=mine)
    with pytest.raises(SettingError, match="--set fixmatch_labels: was decided when the method was made"):
        points_of(config.settings(), {"fixmatch_labels": ["own", "global"]}, seeds=1, out=None, objects=mine)
    drawn = config.replace(sampling="subsets").settings()
    varied = {"subsets": [1, 3], "fixmatch_threshold": [0.5, 0.9], "beta": [0.0, 1.0]}
    assert len(points_of(drawn, varied, seeds=1, out=None, objects=mine)) == 8


@pytest.mark.parametrize(
    ("settings", "axes", "said"),
    [
        ({"partition_file": "x.npz"}, {"gamma": [0.1, 0.5]}, "--set gamma: changes nothing with --partition-file"),
        (
            {"method": "rscfed"},
            {"server_lr": [0.1, 0.5]},
            "--set server_lr: changes nothing without --server-optimizer",
        ),
        (
            {"labeled_clients": None, "labeled_fraction": 0.1},
            {"labeled_choice": ["first", "random"]},
            "--set labeled_choice: changes nothing unless some clients hold all labels",
        ),
    ],
)
def test_what_changes_nothing_cannot_vary(settings, axes, said):
    with pytest.raises(SettingError, match=said):
        points_of(settings, axes, seeds=1, out=None)


def test_a_config_of_one_method_may_be_compared_with_others(tmp_path):
    stored = Config(**SMALL | {"method": "fedirm", "model": "simple-cnn"})
    (tmp_path / "config.json").write_text(json.dumps(stored.to_dict()))
    config = Config.from_file(tmp_path / "config.json", rounds=1)
    result = rj.grid(config, {"method": ["sso", "fedavg"]}, network=TinyNetwork(classes=3))
    assert [row["method"] for row in result.summary] == ["sso", "fedavg"]


def test_a_finished_grid_is_shown_again_where_its_start_is_gone(tmp_path):
    start = tmp_path / "start"
    rj.train(CONFIG.replace(rounds=1), out=start)
    config = CONFIG.replace(rounds=2, init_from=str(start))
    first = rj.grid(config, {"beta": [0.0]}, out=tmp_path / "grid")
    shutil.rmtree(start)
    assert rj.grid(config, {"beta": [0.0]}, out=tmp_path / "grid").summary == first.summary
    with pytest.raises(SettingError, match=r"--init-from .*start: is not a run directory"):
        rj.grid(config, {"beta": [0.0, 1.0]}, out=tmp_path / "grid")
