"""Every table runs, goes on where it stopped, and tells what it found."""

import csv

import numpy as np
import pytest

from rscfed_jax import cli, simulation
from rscfed_jax.paper import reproduce
from rscfed_jax.paper.tables import TABLES, cells_of
from tests.conftest import CLASSES, TinyNetwork

# Sixty clients' worth of samples: Table 4 has up to 50 clients.
DATA = f"synthetic:train=700,test=40,classes={CLASSES},size=16"
FLAGS = (
    *("--dataset", DATA, "--image-size", "16", "--rounds", "2", "--batch-size", "16", "--gamma", "iid"),
    *("--devices", "1", "--quiet"),
)


@pytest.fixture(autouse=True)
def tiny_network(monkeypatch):
    """A network that compiles in no time."""
    monkeypatch.setattr(simulation, "MODELS", {"simple-cnn": lambda classes, conv, dtype: TinyNetwork(dtype)})


def run(*arguments):
    return cli.main(["reproduce", *arguments])


# They compile a program for every number of clients or subsets.
SLOW = ("table4", "table6", "table7")


@pytest.mark.parametrize("table", [pytest.param(t, marks=[pytest.mark.slow] * (t in SLOW)) for t in TABLES])
def test_every_table_runs_and_is_written(tmp_path, capsys, table):
    warmup = "1" if table == "table1" else "0"  # its program would have to be compiled for every shape
    assert run(table, *FLAGS, "--warmup-rounds", warmup, "--out", str(tmp_path)) == 0
    out = capsys.readouterr().out
    names = [cell.name for cell in cells_of(table, DATA)]
    assert TABLES[table].title in out
    assert out.isascii()
    for name in names:
        assert f"\n{name} " in out
        assert f"| {name} |" in (tmp_path / "table.md").read_text()
    with (tmp_path / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["cell"] for row in rows] == names
    assert all(0 <= float(row["accuracy"]) <= 1 for row in rows)
    assert (tmp_path / "curves.png").stat().st_size > 10_000


def test_a_table_goes_on_where_it_stopped_and_averages_over_seeds(tmp_path, capsys, monkeypatch):
    def count(jobs, **_):
        waiting.append(sum(not job.finished for job in jobs))
        return real(jobs, **_)

    waiting, real = [], reproduce.run
    monkeypatch.setattr(reproduce, "run", count)
    flags = ("table2", *FLAGS, "--out", str(tmp_path))
    assert run(*flags) == 0
    assert run(*flags, "--seeds", "2") == 0
    assert waiting == [3, 3]
    capsys.readouterr()
    assert run(*flags, "--seeds", "2", "--dry-run") == 0
    assert capsys.readouterr().out.count("finished") == 6
    jobs = reproduce.plan(
        "table2",
        {"dataset": DATA, "image_size": 16, "rounds": 2, "batch_size": 16, "gamma": "iid", "devices": 1},
        seeds=2,
        out=tmp_path,
    )
    row = reproduce.rows_of(jobs)[0]
    finals = [reproduce.read_json(job.directory.summary, setting="out")["final"]["auc"] for job in jobs[:2]]
    assert row.mean["auc"] == pytest.approx(np.mean(finals))
    assert row.std["auc"] == pytest.approx(np.std(finals, ddof=1))


def test_the_papers_number_and_the_difference_stand_beside_ours():
    cell = cells_of("table2", "svhn")[2]
    metrics = dict.fromkeys(reproduce.METRICS, 0.5)
    row = reproduce.Row(cell, metrics, dict.fromkeys(reproduce.METRICS, 0.01), 0.6, 15.0)
    line = reproduce.cells_as_text([row], seeds=3)[0]
    assert line[:7] == ["rscfed", "50.00 +- 1.00", "70.26", "-20.26", "50.00 +- 1.00", "95.54", "-45.54"]


def test_a_dry_run_lists_the_cells_and_writes_nothing(tmp_path, capsys):
    assert run("table7", *FLAGS, "--seeds", "2", "--dry-run", "--out", str(tmp_path / "new")) == 0
    out = capsys.readouterr().out
    assert "5x3" in out
    assert "subsets=5 subset_size=3" in out
    assert "8 runs, about" in out
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("table8",), "TABLE table8: must be one of"),
        (("table1", "--seeds", "0"), "--seeds 0: must be a whole number"),
        (("table1", "--dataset", "svhn", "--data-dir", "nowhere"), "put train_32x32.mat"),
        (("table1", "--image-size", "18"), "TABLE table1: fedavg_upper does not fit: --image-size 18"),
        (("table4", "--dataset", "synthetic:train=200"), "--min-client-size 10"),
        (("table1", "--method", "sso"), "unrecognized arguments: --method sso"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(tmp_path, monkeypatch, capsys, arguments, reason):
    monkeypatch.chdir(tmp_path)
    try:
        code = run(*arguments)
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    error = capsys.readouterr().err
    assert reason in error
    assert len(error.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_table_runs_from_python(tmp_path):
    settings = {"dataset": DATA, "image_size": 16, "rounds": 2, "batch_size": 16, "gamma": "iid", "devices": 1}
    rows = reproduce.reproduce("table2", settings, out=tmp_path)
    assert [row.cell.name for row in rows] == ["basic", "basic_sso", "rscfed"]
    assert "| basic_sso |" in (tmp_path / "table.md").read_text()
    for wrong, said in [({"method": "sso"}, "--method sso"), ({"seed": 3}, "--seed 3")]:
        with pytest.raises(reproduce.SettingError, match=said):
            reproduce.reproduce("table2", settings | wrong, out=tmp_path)
    with pytest.raises(reproduce.SettingError, match="--seeds 0"):
        reproduce.reproduce("table2", settings, seeds=0, out=tmp_path)
