"""A run is repeated from its config.json and resumed, and what was given by hand stays known."""

import json

import pytest

import rscfed_jax as rj
from rscfed_jax.runner.sweep import cells_of, programs_of
from tests.helpers import SMALL, assert_same_run, flags_of, run
from tests.report.runs import write_run

NETWORK = ["--model", SMALL["model"], "--quiet"]


def stored(out):
    """The content of config.json."""
    return json.loads((out / "config.json").read_text())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run directory."""
    out = tmp_path_factory.mktemp("trained") / "a"
    assert run("train", *flags_of(SMALL | {"beta": 5.0, "rounds": 2, "eval_every": 1}), "--quiet", "--out", out) == 0
    return out


def test_a_repeated_run_is_the_same_bit_for_bit(trained, tmp_path):
    assert run("train", "--config", trained / "config.json", *NETWORK, "--out", tmp_path / "b") == 0
    assert_same_run(tmp_path / "b", trained)
    assert stored(tmp_path / "b") == stored(trained)


def test_a_run_resumes_with_its_own_config_and_keeps_its_record(trained, tmp_path):
    out = tmp_path / "c"
    begun = flags_of(SMALL | {"beta": 5.0, "rounds": 1, "eval_every": 1, "tau": 0.5})
    assert run("train", *begun, "--quiet", "--out", out) == 0
    record = stored(out)["given"]
    assert "tau" in record
    assert run("train", "--config", out / "config.json", *NETWORK, "--rounds", "2", "--out", out, "--resume") == 0
    assert_same_run(out, trained)
    assert stored(out)["given"] == record
    by_flags = flags_of(
        SMALL | {"beta": 5.0, "rounds": 2, "eval_every": 1, "checkpoint_every": 3}
    )  # tau is the default
    assert run("train", *by_flags, "--quiet", "--out", out, "--resume") == 0
    assert stored(out)["given"] == [name for name in stored(out) if name in {*record, "checkpoint_every"}]


def test_a_run_that_was_begun_without_a_record_resumes(trained, tmp_path):
    out = tmp_path / "d"
    flags = [*flags_of(SMALL | {"beta": 5.0, "eval_every": 1}), "--quiet", "--out", out]
    assert run("train", *flags, "--rounds=1") == 0
    before = {name: value for name, value in stored(out).items() if name != "given"}
    (out / "config.json").write_text(json.dumps(before))
    assert run("train", *flags, "--rounds=2", "--resume") == 0
    assert_same_run(out, trained)
    assert "beta" in stored(out)["given"]


def test_a_run_is_evaluated_with_its_own_network_on_other_data(trained, capsys):
    other = "synthetic:train=60,test=30,classes=3,size=16"
    assert run("evaluate", trained, "--dataset", other, *NETWORK[:2]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["round"] == 2


def test_runs_that_differ_only_in_what_was_given_by_hand_are_seeds_of_one_line(tmp_path):
    for seed, more in enumerate(({}, {"tau": 0.5}, {"ema": 0.999})):
        write_run(tmp_path / f"run{seed}", seed=seed, **more)
    _, report = rj.write_report(tmp_path, format="csv")
    assert len(report.lines) == 1
    assert "given" not in {*report.differing, *report.common}


def test_cells_that_differ_only_in_what_was_given_by_hand_share_a_program():
    settings = {"dataset": SMALL["dataset"], "image_size": 16, "gamma": "iid"}
    cells = [
        *cells_of("a", settings, seeds=[0], out=None),
        *cells_of("b", settings | {"tau": 0.5, "local_epochs": 1}, seeds=[0], out=None),
    ]
    assert len(programs_of(cells)) == 1


def test_python_repeats_a_run(trained, tmp_path):
    config = rj.Config.from_file(trained / "config.json", model=SMALL["model"])
    assert config.given()["beta"] == 5.0
    rj.train(config, out=tmp_path / "e")
    assert_same_run(tmp_path / "e", trained)
    assert rj.grid(config, {"beta": [1.0]}, out=tmp_path / "grid").axes == {"beta": [1.0]}
    cell = stored(next((tmp_path / "grid" / "cells").iterdir()))
    assert set(cell["given"]) == {*stored(trained)["given"], "seed"}
