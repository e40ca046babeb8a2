"""From directories to a file: formats, places, and what is refused."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rscfed_jax.config import SettingError
from rscfed_jax.report.write import FORMATS, write_report
from tests.report.runs import write_run


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with runs of two methods, one of them with two seeds."""
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1):
        write_run(tmp_path / "cells" / f"rscfed-seed{seed}", seed=seed)
    write_run(tmp_path / "cells" / "fedavg|_x", method="fedavg")
    return tmp_path


def test_a_page_is_the_default_and_lies_with_the_runs(here):
    file, report = write_report("cells")
    assert file == Path("cells/report.html")
    assert len(report.runs) == 3
    assert file.read_text().startswith("<!doctype html>")
    assert write_report(["cells"], out="new/folder/page.html")[0].read_text() == file.read_text()
    assert write_report([here / "cells"])[0] == here / "cells" / "report.html"


def test_several_directories_share_a_report_in_the_working_directory(here):
    assert write_report(["cells/fedavg|_x", "cells/rscfed-seed0"], format="md")[0] == Path("report.md")
    assert (here / "report.md").exists()


@pytest.mark.parametrize(
    ("ending", "begins"), {"html": b"<!doctype", "md": b"# 3 runs", "csv": b"run,seeds", "png": b"\x89PNG"}.items()
)
def test_the_format_follows_the_ending(here, ending, begins):
    assert ending in FORMATS
    assert write_report("cells", out=f"page.{ending}")[0].read_bytes().startswith(begins)


REFUSED = [
    (["nowhere"], {}, "DIR nowhere: is not a run directory"),
    (["empty"], {}, "DIR empty: is not a run directory"),
    (["file.txt"], {}, "DIR file.txt: is not a run directory"),
    (["cells", "nowhere"], {}, "DIR nowhere: is not a run directory"),
    (["silent"], {}, "DIR silent: has no metrics yet"),
    (["cells", "silent"], {}, "DIR silent: has no metrics yet"),
    (["broken"], {}, "broken/metrics.jsonl: line 3 is not a JSON object"),
    (["cells"], {"format": "pdf"}, "--format pdf: must be one of html, md, csv, png"),
    (["cells"], {"format": ""}, "--format"),
    (["cells"], {"out": "page.pdf"}, "--out page.pdf: must end in .html, .md, .csv, .png"),
    (["cells"], {"out": "page"}, "--out page: must end in"),
    (["cells"], {"out": "page.html", "format": "md"}, "--out page.html: must end in .md"),
    (["cells"], {"out": "cells/fedavg|_x/metrics.jsonl"}, "must end in"),
    (["cells"], {"out": "file.txt/page.html"}, "--out file.txt/page.html: cannot be written"),
    (["cells"], {"out": "taken.html"}, "--out taken.html: cannot be written"),
    (["cells"], {"out": "/proc/page.html"}, "--out /proc/page.html: cannot be written"),
]


def everything_in(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize(("directories", "options", "said"), REFUSED)
def test_bad_input_is_refused_in_one_line_and_nothing_is_written(here, directories, options, said):
    (here / "empty").mkdir()
    (here / "taken.html").mkdir()
    (here / "file.txt").write_text("hello")
    (write_run(here / "silent") / "metrics.jsonl").unlink()
    metrics = write_run(here / "broken") / "metrics.jsonl"
    lines = metrics.read_text().splitlines()
    metrics.write_text("\n".join([*lines[:2], lines[2][:30], *lines[3:]]))
    before = everything_in(here)
    with pytest.raises(SettingError) as error:
        write_report(directories, **options)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
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
        said = ""
        try:
            write_report(path, format=ending)
        except SettingError as error:
            said = str(error)
        assert "\n" not in said
        assert (path / f"report.{ending}").exists() == (said == "")
