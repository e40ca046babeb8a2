"""A method and a network in files of a user's own, through every command."""

import json
import shutil

import pytest

import rscfed_jax as rj
from rscfed_jax.runner import compiled
from tests.helpers import MINE, SMALL, assert_same_run, flags_of, records_of, run, store_model
from tests.report.runs import write_run

TINY = [*flags_of(SMALL), "--quiet"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with the file of a method."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a method and a run of it."""
    here = tmp_path_factory.mktemp("own")
    (here / "mine.py").write_text(MINE)
    flags = ["--method", here / "mine.py", "--mine-threshold=0.8", "--rounds=8"]
    assert run("train", *TINY, *flags, "--out", here / "run") == 0
    return here


def test_a_run_knows_its_method_and_network_by_name_number_and_hash(trained):
    stored = json.loads((trained / "run" / "config.json").read_text())
    assert (stored["method"], stored["mine_threshold"], len(stored["method_hash"])) == ("mine", 0.8, 16)
    assert (stored["model"], len(stored["model_hash"])) == ("tiny_network", 16)


def test_a_run_resumes_bit_for_bit_with_a_copy_of_its_file(here, trained):
    flags = [*TINY, "--method", "./mine.py", "--mine-threshold=0.8", "--out", "run", "--resume"]
    for rounds in (4, 8):
        assert run("train", *flags, f"--rounds={rounds}") == 0
    assert_same_run("run", trained / "run")


def test_a_number_of_the_method_matters(here, trained):
    assert run("train", *TINY, "--method", "./mine.py", "--mine-threshold=0.1", "--rounds=8", "--out", "run") == 0
    assert records_of("run")[-1]["auc"] != records_of(trained / "run")[-1]["auc"]


def test_a_grid_over_a_number_of_the_method_is_one_program(here, monkeypatch, capsys):
    monkeypatch.setattr(compiled, "_COMPILED", {})
    flags = ["--method", "./mine.py", "--set", "mine-threshold=0.5,0.9", "--out", "grid"]
    assert run("grid", *TINY, *flags) == 0
    assert "2 runs, 1 program" in capsys.readouterr().out
    assert len(compiled._COMPILED) == 1
    cells = [json.loads((path / "config.json").read_text()) for path in sorted((here / "grid" / "cells").iterdir())]
    assert [cell["mine_threshold"] for cell in cells] == [0.5, 0.9]
    assert run("grid", *TINY, *flags) == 0
    assert "2 runs, 0 program" in capsys.readouterr().out


def test_a_grid_may_compare_a_file_with_a_built_in_method(here, capsys):
    flags = ["--set", "method=./mine.py,sso", "--mine-threshold=0.5", "--dry-run", "--out", "grid"]
    assert run("grid", *TINY, *flags) == 0
    out = capsys.readouterr().out
    assert "    method-mine, seed 0" in out
    assert "    method-sso, seed 0" in out
    assert "2 programs" in out


def test_a_plan_asks_the_method(here, capsys):
    (here / "all.py").write_text(MINE + '\nSAMPLES = "all"\n')
    told = {}
    for name in ("mine", "all"):
        assert run("plan", *TINY[:-1], "--method", f"./{name}.py") == 0
        told[name] = json.loads(capsys.readouterr().out.splitlines()[-1])["clients"][0]
    assert (told["mine"]["models_per_round"], told["all"]["models_per_round"]) == (15, 10)


def test_a_report_keeps_numbers_and_methods_apart_and_needs_no_file(here, trained, capsys):
    stored = json.loads((trained / "run" / "config.json").read_text())
    for seed, changes in enumerate(({}, {"mine_threshold": 0.2}, {"method_hash": "0123456789abcdef"}, {})):
        out = shutil.copytree(trained / "run", here / "runs" / str(seed))
        (out / "config.json").write_text(json.dumps(stored | changes | {"seed": seed}))
    (here / "mine.py").unlink()
    assert run("report", "runs", "--format", "md") == 0
    _, report = rj.write_report("runs", format="md")
    assert sorted(len(line.runs) for line in report.lines) == [1, 1, 2]
    assert "mine_threshold" in (here / "runs" / "report.md").read_text()


EVIL = "raise SystemExit('a file that nobody asked to run was run')\ndef method(config): pass\n"


def test_a_run_whose_files_are_gone_or_changed_is_read_and_they_are_never_run(here, capsys):
    config = rj.Config(**SMALL | {"model": "simple-cnn", "method": "mine.py", "mine_threshold": 0.25})
    write_run(
        here / "run", **SMALL | {"model": "simple-cnn", "rounds": 4, "classes": 3, "clients": 10, "subset_size": 5}
    )
    (here / "run" / "config.json").write_text(json.dumps(config.to_dict()))
    (here / "run" / "partition.json").unlink()
    store_model(here / "run", config.given())
    for text in (None, EVIL):
        (here / "mine.py").unlink() if text is None else (here / "mine.py").write_text(text)
        assert run("evaluate", "run") == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["round"] == 4
        assert run("export", "run", "model.safetensors", "--force") == 0
        assert run("report", "run") == 0
        capsys.readouterr()
        assert run("train", *flags_of(SMALL | {"model": "simple-cnn"}), "--out", "run", "--resume") == 2
        assert "has the method mine of a file: give that file again (--method PATH)" in capsys.readouterr().err


def test_a_model_of_a_network_in_a_file_is_exported_without_it_and_evaluated_with_it(here, trained, capsys):
    assert run("export", trained / "run", "model.safetensors") == 0
    assert run("evaluate", trained / "run") == 2
    assert "--model tiny_network: is not built in: give the file it came from" in capsys.readouterr().err
    assert run("evaluate", trained / "run", "--model", SMALL["model"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["accuracy"] == pytest.approx(records_of(trained / "run")[-1]["accuracy"])
