"""What is read of runs, and what is refused by name."""

import json
from pathlib import Path

import pytest

from rscfed_jax.config import SettingError
from rscfed_jax.report.collect import collect, find_runs
from rscfed_jax.report.write import write_report
from tests.report.runs import FIRST_METRICS, change_config, write_run


def test_runs_are_found_below_a_directory_once_and_not_inside_each_other(tmp_path):
    for seed in (10, 2):
        write_run(tmp_path / "cells" / f"rscfed-seed{seed}", seed=seed)
    write_run(tmp_path / "cells" / "rscfed-seed2" / "checkpoints" / "4" / "copy")
    assert [place.name for place in find_runs(tmp_path)] == ["rscfed-seed2", "rscfed-seed10"]
    found = collect([tmp_path, tmp_path / "cells" / "rscfed-seed10", tmp_path / "cells"])
    assert [run.seed for run in found.runs] == [2, 10]


def test_a_finished_run_is_what_its_summary_says(tmp_path):
    write_run(tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    (run,) = collect([tmp_path / "run"]).runs
    assert run.finished
    assert run.final == summary["final"]
    assert run.best == summary["best"]
    assert run.confusion == summary["confusion"]


def test_final_and_best_of_an_unfinished_run_come_from_its_metrics(tmp_path):
    write_run(tmp_path / "run", finished=False, stop=3)
    (run,) = collect([tmp_path]).runs
    accuracies = [record["accuracy"] for record in run.records]
    assert not run.finished
    assert run.last_round == 3
    assert run.final["accuracy"] == pytest.approx(sum(accuracies[1:]) / 3)
    assert run.best["accuracy"] == max(accuracies[1:])


def test_a_run_resumed_for_more_rounds_is_unfinished_though_it_has_a_summary(tmp_path):
    path = write_run(tmp_path / "run")
    change_config(path, rounds=60)
    (run,) = collect([path]).runs
    assert not run.finished
    assert run.confusion is None


def test_only_the_model_before_the_first_round(tmp_path):
    path = write_run(tmp_path / "run", finished=False, stop=1)
    lines = (path / "metrics.jsonl").read_text().splitlines()
    (path / "metrics.jsonl").write_text(lines[0] + "\n")
    (run,) = collect([path]).runs
    assert run.final["accuracy"] == run.records[0]["accuracy"]


def test_a_run_of_an_older_version_has_the_defaults_it_did_not_know(tmp_path):
    path = write_run(tmp_path / "run", old=True)
    config = json.loads((path / "config.json").read_text())
    del config["byzantine"]
    (path / "config.json").write_text(json.dumps(config))
    (run,) = collect([path]).runs
    assert run.settings["byzantine"] == 0
    assert run.settings["method_hash"] is None
    assert run.partition is None
    assert run.confusion is None
    assert {name for name, value in run.final.items() if value is not None} == set(FIRST_METRICS)
    assert {name for name, value in run.best.items() if value is not None} == {"round", *FIRST_METRICS}


def test_a_run_of_a_newer_version_keeps_the_settings_that_this_one_does_not_know(tmp_path):
    path = write_run(tmp_path / "run")
    change_config(path, preset="of tomorrow", colour="blue")
    (run,) = collect([path]).runs
    assert (run.settings["preset"], run.settings["colour"]) == ("of tomorrow", "blue")


def test_a_method_of_the_users_own_is_told_by_its_stored_settings_alone(tmp_path):
    path = write_run(tmp_path / "run")
    change_config(path, method="mine", method_hash="0123456789abcdef", mine_share=0.25)
    (run,) = collect([path]).runs
    assert [run.settings[name] for name in ("method", "method_hash", "mine_share")] == [
        *("mine", "0123456789abcdef"),
        0.25,
    ]


@pytest.mark.parametrize("place", ["fashion", "svhn"])
def test_committed_runs_of_version_0_1_are_read(place):
    found = collect([Path(__file__).parents[2] / "benchmarks" / "results" / place])
    assert all(run.finished and run.settings["model_hash"] is None for run in found.runs)
    assert all((run.final["auc"] is None, run.final["f1"] is None) == (False, True) for run in found.runs)


def test_a_run_that_has_not_begun_is_left_out_if_others_have(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", finished=False)
    (tmp_path / "b" / "metrics.jsonl").write_text("")
    found = collect([tmp_path])
    assert [run.path.name for run in found.runs] == ["a"]
    assert [place.name for place in found.empty] == ["b"]
    with pytest.raises(SettingError, match=r"DIR .*b: has no metrics yet"):
        collect([tmp_path, tmp_path / "b"])


LINE = '{"round": 1, "accuracy": 0.5'
WRONG_LINES = {
    LINE: "line 2 is not a JSON object",
    "": "line 2 is not a JSON object",
    "[1]": "line 2 is not a JSON object",
    "\x00": "line 2 is not a JSON object",
    "[" * 99_999: "line 2 is nested too deeply for Python to read",
    '{"accuracy": 0.5}': "line 2 has no round",
    '{"round": 1.5, "accuracy": 0.5}': "line 2 has no round",
    '{"round": 1}': "line 2 has no accuracy",
    '{"round": 1, "accuracy": "high"}': 'line 2 has accuracy "high", which must be a finite number',
    LINE + ', "auc": Infinity}': "line 2 has auc Infinity",
    LINE + ', "bytes_up": ' + "9" * 400 + "}": "line 2 has bytes_up 9999",
    LINE + ', "client_weights": [1]}': "line 2 has client_weights",
    LINE + ', "client_accuracy": {"1": 0.5}}': "line 2 has client_accuracy that is not a list",
    LINE + ', "client_accuracy_min": [1]}': "line 2 has client_accuracy_min [1], which must be a finite number",
    LINE + ', "kept_share": "many"}': 'line 2 has kept_share "many"',
    LINE + ', "kept_share_by_class": [0.5, null, true]}': "line 2 has kept_share_by_class true",
    LINE + ', "client_weights": {"x": 1}}': "line 2 has client_weights",
    LINE + ', "client_weights": {"1": "x"}}': 'line 2 has 1 "x"',
}


@pytest.mark.parametrize("line", WRONG_LINES, ids=lambda line: line[:40])
def test_a_broken_line_is_named_with_its_number(tmp_path, line):
    path = write_run(tmp_path / "run")
    lines = (path / "metrics.jsonl").read_text().splitlines()
    (path / "metrics.jsonl").write_text("\n".join([lines[0], line, *lines[2:]]) + "\n")
    with pytest.raises(SettingError, match=r"metrics.jsonl: line 2") as error:
        collect([path])
    assert WRONG_LINES[line] in str(error.value)


def test_not_a_number_is_nothing_to_draw(tmp_path):
    path = write_run(tmp_path / "run", finished=False, stop=1)
    (path / "metrics.jsonl").write_text(LINE + ', "auc": NaN}\n')
    (run,) = collect([path]).runs
    assert run.records[0]["auc"] is None
    assert run.final["auc"] is None


WRONG_FILES = [
    ("config.json", "[1]", "config.json there is not readable JSON"),
    ("config.json", "\x00", "config.json there is not readable JSON"),
    ("summary.json", "{", "summary.json there is not readable JSON"),
    ("summary.json", '{"final": 3}', "final is not an object"),
    ("summary.json", '{"final": {"auc": "x"}, "best": {}}', 'final has auc "x"'),
    ("summary.json", '{"final": {}, "best": {}, "confusion": [[1, 2]]}', "confusion is not a square table"),
    ("summary.json", '{"final": {}, "best": {}, "confusion": [[1, "<b>"], [0, 0]]}', "confusion is not a square table"),
    ("partition.json", "{}", "needs class_names"),
    ("partition.json", '{"class_names": ["a"], "class_counts": [[1], []], "labels": [1, 1]}', "needs class_names"),
    ("partition.json", '{"class_names": ["a"], "class_counts": [[1], [2]], "labels": [1]}', "needs class_names"),
    (
        "partition.json",
        '{"class_names": ["a"], "class_counts": [[1], [2]], "labels": [1, 1], "server": 0}',
        "server is 0, but must be null or its row, the last",
    ),
    ("metrics.jsonl", "", "has no metrics yet"),
]


@pytest.mark.parametrize(("name", "content", "said"), WRONG_FILES)
def test_a_wrong_file_is_refused_by_name(tmp_path, name, content, said):
    path = write_run(tmp_path / "run")
    (path / name).write_text(content)
    with pytest.raises(SettingError) as error:
        collect([path])
    assert said in str(error.value)
    assert str(path) in str(error.value)


def test_a_run_of_very_many_clients_lists_none_of_them(tmp_path):
    path = write_run(tmp_path / "run")
    before = json.loads((path / "partition.json").read_text())
    totals = {"holders": 1_000_000, "class_names": before["class_names"], "checksum": "f00", "server": None}
    (path / "partition.json").write_text(json.dumps(totals))
    [run] = collect([path]).runs
    assert (run.partition.class_names, run.partition.labels) == (before["class_names"], [])
    _, report = write_report([path], out=tmp_path / "page.html")
    assert any("No class histogram" in note and "too many clients" in note for note in report.notes)
