"""The command as its users meet it: its formats, where it writes, and what it refuses."""

import csv
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rscfed_jax.report.write import write_report
from tests.report.runs import write_run
from tests.test_bad_input import assert_refused, everything_in, run_quietly
from tests.test_cli import run


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with runs of two methods, one of them with two seeds."""
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1):
        write_run(tmp_path / "cells" / f"rscfed-seed{seed}", seed=seed)
    write_run(tmp_path / "cells" / "fedavg|_x", method="fedavg")
    return tmp_path


def test_a_page_is_the_default_and_lies_with_the_runs(here, capsys):
    assert run("report", "cells") == 0
    assert capsys.readouterr().out == "report of 3 runs: cells/report.html\n"
    assert (here / "cells" / "report.html").read_text().startswith("<!doctype html>")
    assert run("report", "cells", "--out", "new/folder/page.html") == 0
    assert (here / "new" / "folder" / "page.html").read_text() == (here / "cells" / "report.html").read_text()
    assert run("report", "cells/fedavg|_x", "cells/rscfed-seed0", "--format", "md") == 0
    assert (here / "report.md").exists()


def test_the_csv_has_full_numbers(here):
    assert run("report", "cells", "--format", "csv") == 0
    alone, together = csv.DictReader((here / "cells" / "report.csv").read_text().splitlines())
    summary = json.loads((here / "cells" / "fedavg|_x" / "summary.json").read_text())
    for part in ("final", "best"):
        for name in ("accuracy", "auc", "precision", "recall"):
            assert float(alone[f"{part}_{name}"]) == summary[part][name]
            assert alone[f"{part}_{name}_std"] == ""
    assert float(together["final_auc_std"]) > 0
    assert (together["run"], together["seeds"], together["method"]) == ("rscfed", "2", "rscfed")
    assert float(together["bytes_up"]) == 6 * 2_200_000


def test_the_markdown_is_whole_tables(here):
    assert run("report", "cells", "--out", "table.md") == 0
    lines = (here / "table.md").read_text().splitlines()
    summary = json.loads((here / "cells" / "fedavg|_x" / "summary.json").read_text())
    row = next(line for line in lines if line.startswith("| fedavg\\|_x | 1 |"))
    assert f"| {100 * summary['final']['accuracy']:.2f} |" in row
    head = next(line for line in lines if line.startswith("| Run | Seeds |"))
    assert row.replace("\\|", "").count("|") == head.count("|")
    assert "| rscfed | rscfed |" in lines


@pytest.mark.parametrize("old", [False, True])
def test_the_picture(here, old):
    write_run(here / "more" / "_run$1_{$2", old=old, classes=60, clients=50)
    assert run("report", "more", "cells", "--out", "curves.png") == 0
    content = (here / "curves.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 20_000


def test_one_directory_need_not_be_a_list(here):
    assert write_report(here / "cells")[0] == here / "cells" / "report.html"
    assert write_report("cells", out="page.md")[0].exists()


REFUSED = [
    ("report", "required: DIR"),
    ("report nowhere", "DIR nowhere: is not a run directory"),
    ("report empty", "DIR empty: is not a run directory"),
    ("report file.txt", "DIR file.txt: is not a run directory"),
    ("report cells nowhere", "DIR nowhere: is not a run directory"),
    ("report silent", "DIR silent: has no metrics yet"),
    ("report cells silent", "DIR silent: has no metrics yet"),
    ("report broken", "broken/metrics.jsonl: line 3 is not a JSON object"),
    ("report cells --format pdf", "--format pdf: must be one of html, md, csv, png"),
    ("report cells --format=", "--format"),
    ("report cells --out page.pdf", "--out page.pdf: must end in .html, .md, .csv, .png"),
    ("report cells --out page", "--out page: must end in"),
    ("report cells --format md --out page.html", "--out page.html: must end in .md"),
    ("report cells --out cells/fedavg|_x/metrics.jsonl", "must end in"),
    ("report cells --out file.txt/page.html", "--out file.txt/page.html: cannot be written"),
    ("report cells --out taken.html", "--out taken.html: cannot be written"),
    ("report cells --out /proc/page.html", "--out /proc/page.html: cannot be written"),
    ("report cells --rounds 3", "unrecognized arguments"),
]


@pytest.mark.parametrize(("line", "said"), REFUSED)
def test_bad_input_is_refused_in_one_line_and_nothing_is_written(here, capsys, line, said):
    (here / "empty").mkdir()
    (here / "taken.html").mkdir()
    (here / "file.txt").write_text("hello")
    (write_run(here / "silent") / "metrics.jsonl").unlink()
    metrics = write_run(here / "broken") / "metrics.jsonl"
    lines = metrics.read_text().splitlines()
    metrics.write_text("\n".join([*lines[:2], lines[2][:30], *lines[3:]]))
    before = everything_in(here)
    assert said in assert_refused(capsys, line.split(" "))
    assert everything_in(here) == before


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["final", "best", "confusion", "labels", "1"]), inner, max_size=4)
    ),
    max_leaves=12,
)
NAMES = ["round", "accuracy", "auc", "bytes_up", "client_weights", "class_counts", "class_names", "labels", "final"]
CONTENTS = (
    st.binary(max_size=60)
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.dictionaries(st.sampled_from([*NAMES, "best", "confusion", "rounds", "seed", "dataset"]), JSON).map(
        lambda value: json.dumps(value).encode()
    )
)


@settings(max_examples=40)
@given(content=CONTENTS, name=st.sampled_from(["config.json", "metrics.jsonl", "summary.json", "partition.json"]))
def test_any_content_of_any_file_is_shown_or_refused_in_one_line(tmp_path_factory, content, name):
    path = write_run(tmp_path_factory.mktemp("fuzz") / "run")
    (path / name).write_bytes(content)
    for ending in ("html", "csv", "md"):
        code, said = run_quietly("report", path, "--format", ending)
        assert code in (0, 2)
        assert said.count("\n") == (code == 2)
        assert (path / f"report.{ending}").exists() == (code == 0)


def test_what_a_reader_must_know_is_also_said_by_the_command(here, capsys):
    write_run(here / "cells" / "svhn", dataset="svhn", finished=False, stop=2)
    assert run("report", "cells") == 0
    said = capsys.readouterr().out
    assert "different data sets (synthetic:classes=4, svhn)" in said
    assert "cells/svhn is not finished, evaluated up to round 2 of 6" in said
