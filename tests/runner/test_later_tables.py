"""Tables of later papers: run, planned, joined by a method, and described."""

import csv

import pytest

from rscfed_jax.paper.later import LATER_TABLES
from rscfed_jax.paper.tables import TABLES, rows_of
from rscfed_jax.runner.table import plan
from tests.helpers import SMALL, flags_of, run

# RandAugment would take most of the time, in compilation.
SETTINGS = {name: value for name, value in SMALL.items() if name != "gamma"}
SETTINGS |= {"rounds": 2, "eval_every": 2, "strong": "weak"}
MORE = "synthetic:train=2000,test=40,classes=10,size=16"  # for clients that hold few classes
OWN = {
    "cbafed-table1": {"warmup_rounds": 1, "gamma": "iid"},
    "semianagg": {"warmup_rounds": 1, "gamma": "iid"},
    "sage": {"labeled_batch_size": 4, "min_client_size": 1, "dataset": MORE},
    "semifl": {"server_labels": 4, "dataset": MORE},
}


def reproduced(table, out):
    flags = [*flags_of(SETTINGS | OWN[table]), "--quiet", "--out", out]
    assert run("reproduce", table, *flags) == 0
    with (out / "table.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture
def two_rows(monkeypatch):
    """Leaves SAGE's table its first two rows, which are one program."""
    whole = LATER_TABLES["sage"]
    monkeypatch.setitem(TABLES, "sage", whole._replace(rows=lambda *given: whole.rows(*given)[:2]))


def test_the_bounds_of_a_table_run(tmp_path, capsys, two_rows):
    check_table("sage", tmp_path, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("table", LATER_TABLES)
def test_a_table_runs(tmp_path, capsys, table):
    check_table(table, tmp_path, capsys)


def check_table(table, out, capsys):
    """Runs a table: it holds all rows and names its paper."""
    rows = reproduced(table, out)
    assert [row["row"] for row in rows] == [row.name for row in rows_of(table, "synthetic")]
    assert all(0 <= float(row["accuracy"]) <= 1 for row in rows)
    text = (out / "table.md").read_text()
    assert capsys.readouterr().out.isascii()
    for said in (LATER_TABLES[table].title, LATER_TABLES[table].protocol, "preset paper, tiny_network, "):
        assert said in text
    assert "2 rounds, 1 seed" in text  # the labels alone are a part of every client's samples, the table is not
    assert ("--server-labels 4" in text) == (table == "semifl")
    assert ("--gamma 0.1" in text) == (table == "sage")


def test_a_dry_run_lists_defaults_rows_and_hours(tmp_path, capsys):
    flags = ["--dataset=fashion", "--model=simple-cnn", "--rounds=30", "--train-fraction=0.1", "--cbafed-cap=0.8"]
    assert run("reproduce", "cbafed-table1", *flags, "--dry-run", "--out", tmp_path / "new") == 0
    out = capsys.readouterr().out
    assert "common: model=simple-cnn stem=imagenet rounds=30" in out
    assert "method=cbafed sampling=labeled cbafed_labeled_epochs=1 cbafed_server_keep=0.8 warmup_rounds=0" in out
    assert "8 runs, 0 of them finished" in out
    assert " h on two CPU cores, estimated from arithmetic" in out
    assert not (tmp_path / "new").exists()


def test_the_users_settings_win_over_defaults_and_rows_win_over_both(tmp_path):
    settings = {"dataset": "fashion", "model": "simple-cnn", "warmup_rounds": 3, "cbafed_cap": 0.8}
    rows = {row.row.name: row.cells[0].config for row in plan("cbafed-table1", settings, seeds=1, out=tmp_path)}
    assert {(config.model, config.rounds, config.warmup_rounds) for config in rows.values()} == {("simple-cnn", 500, 3)}
    assert rows["cbafed"].own["cap"] == 0.8
    assert (rows["fedavg_plus"].own["labeled_epochs"], rows["cbafed"].own["labeled_epochs"]) == (1, 11)


def test_a_method_joins_beside_the_papers_own_and_not_beside_its_variants(tmp_path):
    settings = {"dataset": "fashion", "method": "fixmatch", "fixmatch_threshold": 0.8}
    rows = plan("cbafed-table1", settings, seeds=1, out=tmp_path)
    assert [row.row.name for row in rows][7:] == ["cbafed", "fixmatch"]
    guest = rows[-1].cells[0].config
    assert (guest.method, guest.own["threshold"], guest.model) == ("fixmatch", 0.8, "resnet18-linear")
    names = [row.row.name for row in plan("semifl", {"method": "fixmatch"}, seeds=1, out=tmp_path)]
    assert names[6:] == ["fixmatch_dir0.1", "fixmatch_dir0.3", "fixmatch_2_classes", "fixmatch_iid"]
