"""Runs of version 0.1: they are evaluated, exported and reported, but not resumed."""

import json
import shutil

import pytest
import safetensors.numpy

import rscfed_jax as rj
from tests.helpers import ROOT, SMALL, flags_of, run, store_model
from tests.report.runs import FIRST_METRICS, write_run

SETTINGS = SMALL | {"model": "simple-cnn"}


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    """A run directory as version 0.1 left it, and its model."""
    out = tmp_path_factory.mktemp("old") / "run"
    write_run(out, old=True, classes=3, **SETTINGS | {"clients": 10, "subset_size": 5})
    model = store_model(out, SETTINGS)
    for place in ("", "state", "model", "best"):  # of Orbax
        (out / "checkpoints" / "4" / place / "commit_success.txt").write_text("")
    (out / "checkpoints" / "4" / "_CHECKPOINT_METADATA").write_text("{}")
    return out, model


def test_it_is_one_of_version_0_1(old):
    stored = json.loads((old[0] / "config.json").read_text())
    assert "method_hash" not in stored
    record = json.loads((old[0] / "metrics.jsonl").read_text().splitlines()[0])
    assert set(FIRST_METRICS) <= set(record)
    assert "f1" not in record


def test_it_is_evaluated(old, capsys):
    assert run("evaluate", old[0]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["round"] == 4
    assert 0 <= found["calibration_error"] <= 1
    assert run("evaluate", old[0] / "checkpoints" / "4") == 0
    assert json.loads(capsys.readouterr().out) == found


def test_it_is_exported(old, tmp_path, capsys):
    assert run("export", old[0], tmp_path / "model.safetensors") == 0
    assert capsys.readouterr().out.startswith("model of round 4: ")
    tensors = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    assert (tensors["l3.bias"] == old[1]["params"]["l3"]["bias"]).all()


def test_it_is_reported_beside_a_new_run(old, tmp_path):
    shutil.copytree(old[0], tmp_path / "runs" / "old")
    write_run(tmp_path / "runs" / "new", classes=3, **SETTINGS | {"clients": 10, "subset_size": 5, "seed": 1})
    _, report = rj.write_report(tmp_path / "runs", format="csv")
    assert {run.path.name: run.final["f1"] is None for run in report.runs} == {"old": True, "new": False}


@pytest.mark.parametrize("ending", ["html", "md"])
def test_the_runs_that_are_kept_with_the_code_are_reported(tmp_path, ending):
    file, report = rj.write_report(ROOT / "benchmarks" / "results" / "svhn", out=tmp_path / f"page.{ending}")
    assert file.stat().st_size > 1000
    assert len(report.runs) > 5


def test_it_is_not_resumed(old, capsys):
    before = sorted(old[0].rglob("*"))
    assert run("train", *flags_of(SETTINGS), "--out", old[0], "--resume") == 2
    [said] = capsys.readouterr().err.splitlines()
    assert f"--resume {old[0]}: was written by version 0.1, whose runs can be evaluated, exported and reported" in said
    assert sorted(old[0].rglob("*")) == before
