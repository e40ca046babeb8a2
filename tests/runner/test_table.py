"""Every table runs, resumes where it stopped, and tells what it found."""

import csv
import shutil

import numpy as np
import pytest

import rscfed_jax as rj
from rscfed_jax.cli import commands
from rscfed_jax.config import SettingError
from rscfed_jax.config.registry import metrics
from rscfed_jax.core.method import Method
from rscfed_jax.core.sampling import AllClients
from rscfed_jax.paper.rscfed import RSCFED_TABLES
from rscfed_jax.paper.tables import TABLES, Row, Table, rows_of
from rscfed_jax.runner.build import Objects
from rscfed_jax.runner.sweep import programs_of, run_programs
from rscfed_jax.runner.table import RowResult, _mean_curve, as_lines, plan, results_of
from tests.helpers import MINE, SMALL, flags_of, run

FLAGS = [*flags_of(SMALL), "--quiet"]
TABLE = "labeled_share"  # its rows differ in a number alone: they are one program
ROWS = ["share_20", "share_30", "share_50", "share_70"]
TABLE2 = ["basic", "basic_sso", "rscfed"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A table that a method of a user's own has joined."""
    here = tmp_path_factory.mktemp("table")
    (here / "mine.py").write_text(MINE)
    flags = [*FLAGS, f"--method={here}/mine.py", "--mine-threshold=0.5"]
    assert run("reproduce", TABLE, *flags, "--out", here / "table") == 0
    return here / "table"


def read_csv(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_a_table_is_written_and_a_method_that_is_given_joins_it(whole):
    rows = read_csv(whole / "table.csv")
    names = [*ROWS, *(f"mine_{name}" for name in ROWS)]
    assert [row["row"] for row in rows] == names
    text = (whole / "table.md").read_text()
    for row in rows:
        assert f"| {row['row']} |" in text
        assert all(0 <= float(row[name]) <= 1 for name in metrics())
    assert [float(row["models_up_per_round"]) for row in rows] == [10] * 4 + [15] * 4
    assert (whole / "curves.png").stat().st_size > 10_000
    assert {path.name for path in (whole / "cells").iterdir()} == {f"{name}-seed0" for name in names}


def test_the_own_numbers_of_a_method_reach_its_row_alone(whole):
    stored = {path.name: (path / "config.json").read_text() for path in (whole / "cells").iterdir()}
    for name, text in stored.items():
        assert ('"mine_threshold": 0.5' in text) == ("threshold" in text) == name.startswith("mine_")


def test_a_table_resumes_where_it_stopped_and_seeds_join(tmp_path, monkeypatch, capsys, whole):
    out = shutil.copytree(whole, tmp_path / "table")
    waiting, real = [], commands.run_programs

    def count(programs, **options):
        waiting.append(sorted(cell.name for program in programs for cell in program.cells))
        return real(programs, **options)

    monkeypatch.setattr(commands, "run_programs", count)
    assert run("reproduce", TABLE, *FLAGS, "--seeds", "2", "--out", out) == 0
    assert waiting == [[f"{name}, seed 1" for name in ROWS]]
    assert "| mine" not in (out / "table.md").read_text()  # it was not asked for this time
    assert [row["seeds"] for row in read_csv(out / "table.csv")] == ["2"] * 4
    capsys.readouterr()
    assert run("reproduce", TABLE, *FLAGS, "--seeds", "2", "--dry-run", "--out", out) == 0
    assert "8 runs, 8 of them finished" in capsys.readouterr().out
    rows = plan(TABLE, SMALL, seeds=2, out=out)
    finals = [cell.directory.read_summary()["final"]["auc"] for cell in rows[0].cells]
    assert results_of(rows)[0].metrics["auc"] == pytest.approx((np.mean(finals), np.std(finals, ddof=1)))
    check_diverged_seeds(rows, finals)


def check_diverged_seeds(rows, finals):
    """A seed that diverged is left out and counted, also if it has a summary of fewer rounds."""
    first, second = (cell.directory for cell in rows[0].cells)
    first.metrics.write_text(first.metrics.read_text().splitlines()[0] + "\n")
    first.diverged.write_text("{}")
    found = results_of(rows)[0]
    assert (found.metrics["auc"], found.seeds, found.diverged) == ((finals[1], None), 2, 1)
    assert as_lines([found])[1][1:3] == ["2 (1 diverged)", f"{100 * found.metrics['accuracy'][0]:.2f}"]
    assert len(_mean_curve(rows[0].cells)) == len(second.read_metrics())
    second.diverged.write_text("{}")
    assert as_lines(results_of(rows))[1][1:3] == ["2 (2 diverged)", "diverged"]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda out: ((out / "table.md").unlink(), (out / "table.md").mkdir()), "--out {out}: cannot be written"),
        (
            lambda out: (out / "cells/share_20-seed0/metrics.jsonl").unlink(),
            "--out {out}/cells/share_20-seed0/metrics.jsonl: cannot be read",
        ),
        (
            lambda out: (out / "cells/share_20-seed0/summary.json").write_text("{}"),
            "--out {out}/cells/share_20-seed0: summary.json",
        ),
    ],
    ids=["table.md", "metrics.jsonl", "summary.json"],
)
def test_a_finished_table_that_cannot_be_told_again_says_why_in_a_line(tmp_path, capsys, whole, damage, said):
    out = shutil.copytree(whole, tmp_path / "table")
    damage(out)
    assert run("reproduce", TABLE, *FLAGS, "--out", out) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said.format(out=out) in line


def test_a_stop_before_the_first_program_leaves_nothing_behind(tmp_path):
    rows = plan("table2", SMALL, seeds=1, out=tmp_path / "new")
    programs = programs_of([cell for row in rows for cell in row.cells])
    with pytest.raises(rj.Stopped, match="stopped before program 1 of 3"):
        run_programs(programs, progress=False, stop=lambda: True)
    assert not (tmp_path / "new").exists()


def test_a_table_runs_from_python(tmp_path, whole):
    out = shutil.copytree(whole, tmp_path / "table")
    for name in ROWS:
        shutil.rmtree(out / "cells" / f"{name}-seed0")
    results = rj.reproduce(TABLE, SMALL, out=out)
    assert [result.row.name for result in results] == ROWS
    assert read_csv(out / "table.csv") == read_csv(whole / "table.csv")[:4]
    for wrong, options, said in [
        ({"seed": 3}, {}, "--seed 3: is decided by the table's rows"),
        ({"clients": 3}, {}, "--clients 3: is decided"),
        ({}, {"seeds": 0}, "--seeds 0"),
        ({"method": "fed_consist"}, {}, "--method fed_consist: is already in the table"),
    ]:
        with pytest.raises(SettingError, match=said):
            rj.reproduce(TABLE, SMALL | wrong, out=out, **options)


def test_an_object_joins_every_row_of_the_papers_own_method(tmp_path):
    own = Objects(Method(name="mine", sample=AllClients()))
    rows = plan("table4", {"dataset": "synthetic"}, seeds=1, out=tmp_path, objects=own)
    guests = [row for row in rows if row.row.name.startswith("mine")]
    assert [row.row.name for row in guests] == [f"mine_{count}" for count in (5, 10, 15, 25, 35, 50)]
    assert [row.cells[0].config.clients for row in guests] == [5, 10, 15, 25, 35, 50]
    assert {(row.cells[0].config.method, row.cells[0].config.method_hash) for row in guests} == {("mine", "none")}
    assert {row.cells[0].config.method for row in rows} == {"mine", "rscfed", "fed_consist"}
    assert [row.cells[0].objects.method for row in rows if row not in guests] == [None] * 12
    names = [row.row.name for row in plan("table7", {"dataset": "synthetic"}, seeds=1, out=tmp_path, objects=own)]
    assert names[4:] == ["mine_3x5", "mine_5x3", "mine_2x7", "mine_4x4"]


def test_a_built_in_method_joins_by_name(tmp_path):
    rows = plan("table2", {"dataset": "synthetic", "method": "fedirm", "fedirm_factor": 2.0}, seeds=1, out=tmp_path)
    assert [row.row.name for row in rows] == [*TABLE2, "fedirm"]
    assert rows[3].cells[0].config.own["factor"] == 2.0


# A program for every number of clients or subsets, or the same methods again for other shapes.
@pytest.mark.slow
@pytest.mark.parametrize("table", [table for table in RSCFED_TABLES if table != TABLE])
def test_every_other_table_runs(tmp_path, capsys, table):
    # Table 4 has up to 50 clients.
    data = ["--dataset=synthetic:train=700,test=40,classes=3,size=16", f"--warmup-rounds={int(table == 'table1')}"]
    assert run("reproduce", table, *FLAGS, *data, "--out", tmp_path) == 0
    out = capsys.readouterr().out
    assert TABLES[table].title in out
    assert out.isascii()
    rows = read_csv(tmp_path / "table.csv")
    assert [row["row"] for row in rows] == [row.name for row in rows_of(table, "synthetic")]
    assert all(0 <= float(row["accuracy"]) <= 1 for row in rows)
    assert all(float(row["models_up_per_round"]).is_integer() for row in rows)  # the warm-up is not counted


def test_the_papers_number_and_the_difference_stand_beside_ours():
    row = rows_of("table2", "svhn")[2]
    found = RowResult(row, dict.fromkeys(metrics(), (0.5, 0.01)), 0.6, 15.0, seeds=3, diverged=0)
    line = as_lines([found])[1]
    assert line[:8] == ["rscfed", "3", "50.00 +- 1.00", "70.26", "-20.26", "50.00 +- 1.00", "95.54", "-45.54"]


def test_a_dry_run_lists_the_rows_and_writes_nothing(tmp_path, capsys):
    assert run("reproduce", "table7", *FLAGS, "--seeds", "2", "--dry-run", "--out", tmp_path / "new") == 0
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
        ({"labeled_clients": 11}, "--labeled-clients 11: must be from 1 to --clients 10"),
        ({"method": "fedprox"}, "--method fedprox: must be one of"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_before_the_others_run(tmp_path, monkeypatch, settings, reason):
    rows = [Row("good", {"method": "sso"}, {}), Row("bad", {"method": "sso"} | settings, {})]
    monkeypatch.setitem(TABLES, "table9", Table("Table 9", lambda *_: rows))
    with pytest.raises(SettingError) as error:
        plan("table9", SMALL, seeds=1, out=tmp_path / "new")
    assert f"TABLE table9: bad does not fit: {reason}" in str(error.value)
    assert not (tmp_path / "new").exists()
