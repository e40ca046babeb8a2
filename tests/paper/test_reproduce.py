"""Every table runs, goes on where it stopped, and tells what it found."""

import csv

import numpy as np
import pytest

from rscfed_jax import cli, commands, simulation
from rscfed_jax.runner.loop import Stopped
from rscfed_jax.paper import reproduce
from rscfed_jax.paper.tables import TABLES, Cell, Table, cells_of
from tests.conftest import CLASSES, TinyNetwork

# Sixty clients' worth of samples: Table 4 has up to 50 clients.
DATA = f"synthetic:train=700,test=40,classes={CLASSES},size=16"
FLAGS = (
    *("--dataset", DATA, "--image-size", "16", "--rounds", "2", "--batch-size", "16", "--gamma", "iid"),
    *("--devices", "1", "--quiet"),
)


MODELS = simulation.MODELS


@pytest.fixture(autouse=True)
def tiny_network(monkeypatch):
    """A network that compiles in no time."""
    monkeypatch.setattr(simulation, "MODELS", {"simple-cnn": lambda classes, conv, dtype: TinyNetwork(dtype)})


def run(*arguments):
    return cli.main(["reproduce", *arguments])


# They compile a program for every number of clients or subsets, or the same methods again for other shapes.
SLOW = ("table3", "table4", "table5", "table6", "table7", "figure2")


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
    assert all(float(row["models_up_per_round"]).is_integer() for row in rows)  # the warm-up is not counted
    assert (tmp_path / "curves.png").stat().st_size > 10_000


@pytest.mark.slow
def test_a_table_runs_with_resnet(tmp_path, monkeypatch):
    monkeypatch.setattr(simulation, "MODELS", MODELS)
    flags = ("--model", "resnet18", "--stem", "imagenet", "--train-fraction", "0.2", "--rounds", "1")
    assert run("table1", *FLAGS, *flags, "--warmup-rounds", "0", "--out", str(tmp_path)) == 0
    with (tmp_path / "table.csv").open() as file:
        assert [row["cell"] for row in csv.DictReader(file)] == [cell.name for cell in cells_of("table1", DATA)]


def test_a_table_goes_on_where_it_stopped_and_averages_over_seeds(tmp_path, capsys, monkeypatch):
    def count(groups, **_):
        waiting.append(sum(len(group.jobs) for group in groups))
        return real(groups, **_)

    waiting, real = [], commands.run_groups
    monkeypatch.setattr(commands, "run_groups", count)
    flags = ("table2", *FLAGS, "--out", str(tmp_path))
    assert run(*flags) == 0
    assert run(*flags, "--seeds", "2") == 0
    assert waiting == [3, 3]
    jobs = reproduce.plan("table2", {"dataset": DATA}, seeds=1, out=tmp_path / "new")
    with pytest.raises(Stopped, match="before group 1"):
        reproduce.run(jobs, progress=False, stop=lambda: True)
    assert not (tmp_path / "new").exists()
    capsys.readouterr()
    assert run(*flags, "--seeds", "2", "--dry-run") == 0
    assert "6 runs, 6 of them finished" in capsys.readouterr().out
    jobs = reproduce.plan(
        "table2",
        {"dataset": DATA, "image_size": 16, "rounds": 2, "batch_size": 16, "gamma": "iid", "devices": 1},
        seeds=2,
        out=tmp_path,
    )
    row = reproduce.rows_of(jobs)[0]
    finals = [job.directory.read_summary()["final"]["auc"] for job in jobs[:2]]
    assert row.mean["auc"] == pytest.approx(np.mean(finals))
    assert row.std["auc"] == pytest.approx(np.std(finals, ddof=1))

    # A seed that diverged is left out and counted, also if it has a summary of fewer rounds.
    first, second = (job.directory for job in jobs[:2])
    kept = first.metrics.read_text()
    first.metrics.write_text(kept.splitlines()[0] + "\n")
    first.diverged.write_text("{}")
    row = reproduce.rows_of(jobs)[0]
    assert (row.mean["auc"], row.std["auc"], row.seeds, row.diverged) == (finals[1], 0.0, 2, 1)
    assert reproduce.cells_as_text([row])[0][1:3] == ["2 (1 diverged)", f"{100 * row.mean['accuracy']:.2f}"]
    assert len(reproduce._mean_curve(jobs, row.cell)) == len(second.read_metrics())
    second.diverged.write_text("{}")
    assert reproduce.cells_as_text(reproduce.rows_of(jobs))[0][1:3] == ["2 (2 diverged)", "diverged"]
    first.metrics.write_text(kept)
    first.diverged.unlink()
    second.diverged.unlink()

    cell = jobs[0].directory
    assert_refused(capsys, flags, f"--out {tmp_path}: cannot be written", lambda: to_folder(tmp_path / "table.md"))
    assert_refused(capsys, flags, f"--out {cell.path}: metrics.jsonl there", cell.metrics.unlink)
    assert_refused(capsys, flags, f"--out {cell.path}: summary.json there", lambda: cell.summary.write_text("{}"))


def to_folder(path):
    path.unlink()
    path.mkdir()


def assert_refused(capsys, flags, reason, damage):
    """A finished table that cannot be told again says why in a line."""
    damage()
    assert run(*flags) == 2
    [said] = capsys.readouterr().err.splitlines()
    assert reason in said


def test_the_papers_number_and_the_difference_stand_beside_ours():
    cell = cells_of("table2", "svhn")[2]
    metrics = dict.fromkeys(reproduce.METRICS, 0.5)
    row = reproduce.Row(cell, metrics, dict.fromkeys(reproduce.METRICS, 0.01), 0.6, 15.0, seeds=3, diverged=0)
    line = reproduce.cells_as_text([row])[0]
    assert line[:8] == ["rscfed", "3", "50.00 +- 1.00", "70.26", "-20.26", "50.00 +- 1.00", "95.54", "-45.54"]


def test_a_dry_run_lists_the_cells_and_writes_nothing(tmp_path, capsys):
    assert run("table7", *FLAGS, "--seeds", "2", "--dry-run", "--out", str(tmp_path / "new")) == 0
    out = capsys.readouterr().out
    assert "5x3" in out
    assert "subsets=5 subset_size=3" in out
    assert "8 runs, 0 of them finished" in out
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"method": "fedirm", "labeled_fraction": 0.1}, "--method fedirm: needs clients with all their labels"),
        ({"subset_size": 11}, "--subset-size 11: must be from 1 to --clients 10"),
        ({"clients": 4}, "--subset-size 5: must be from 1 to --clients 4"),
        ({"labeled_clients": 11}, "--labeled-clients 11: must be from 1 to --clients 10"),
        ({"method": "fedprox"}, "--method fedprox: must be one of"),
    ],
)
def test_a_cell_that_does_not_fit_is_refused_before_the_others_run(tmp_path, monkeypatch, capsys, settings, reason):
    cells = [Cell("good", {}, {}), Cell("bad", settings, {})]
    monkeypatch.setitem(TABLES, "table9", Table("Table 9", lambda *_: cells))
    assert run("table9", *FLAGS, "--out", str(tmp_path / "new")) == 2
    [said] = capsys.readouterr().err.splitlines()
    assert f"TABLE table9: bad does not fit: {reason}" in said
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("table8",), "TABLE table8: must be one of"),
        (("table1", "--seeds", "0"), "--seeds 0: must be a whole number"),
        (("table1", "--dataset", "svhn", "--data-dir", "nowhere"), "put train_32x32.mat"),
        (("table1", "--image-size", "18"), "TABLE table1: fedavg_upper does not fit: --image-size 18"),
        (("table2", "--model", "resnet18", "--image-size", "8"), "basic does not fit: --image-size 8: resnet18"),
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
