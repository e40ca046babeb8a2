"""What two runs are compared by."""

import json

import numpy as np
import pytest

from rscfed_jax.config.registry import metrics
from rscfed_jax.report.collect import collect
from rscfed_jax.report.comparison import comparison
from rscfed_jax.report.seeds import build_report
from tests.report.runs import write_run


def comparison_of(path):
    return comparison(build_report(collect([path])))


def summary_of(path):
    return json.loads((path / "summary.json").read_text())


def test_one_run_cannot_be_compared(tmp_path):
    write_run(tmp_path / "run")
    assert comparison_of(tmp_path) is None


def test_seeds_of_a_single_line_are_compared_with_each_other(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"rscfed-seed{seed}", seed=seed)
    compared = comparison_of(tmp_path)
    assert compared["lines"] == 0
    assert [item["name"] for item in compared["items"]] == ["rscfed, seed 0", "rscfed, seed 1"]
    assert [item["settings"] for item in compared["items"]] == [{"seed": "0"}, {"seed": "1"}]


def test_lines_come_before_their_single_seeds(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"rscfed-seed{seed}", seed=seed, behind=0.1)
    write_run(tmp_path / "fedavg", method="fedavg")
    compared = comparison_of(tmp_path)
    assert compared["lines"] == 2
    assert [item["name"] for item in compared["items"]] == ["fedavg", "rscfed", "rscfed, seed 0", "rscfed, seed 1"]
    assert compared["items"][1]["settings"] == {"seed": "0, 1", "method": "rscfed"}


def test_values_are_those_of_each_seed(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"rscfed-seed{seed}", seed=seed)
    write_run(tmp_path / "old", tau=0.9, old=True)
    compared = comparison_of(tmp_path)
    titles = [measure["title"] for measure in compared["measures"]]
    assert titles == [*metrics().values(), "Sent up, MB", "Sent down, MB"]
    lower = [measure["title"] for measure in compared["measures"] if measure["lower"]]
    assert lower == ["Calibration error", "Sent up, MB", "Sent down, MB"]
    items = {item["name"]: item for item in compared["items"]}
    final = [summary_of(tmp_path / f"rscfed-seed{seed}")["final"] for seed in (0, 1)]
    for values, name in zip(items["rscfed"]["values"], metrics(), strict=False):
        assert values == pytest.approx([of_seed[name] for of_seed in final], abs=1e-6)
    assert items["rscfed"]["values"][titles.index("Sent down, MB")] == [9_000_000, 9_000_000]
    assert items["old"]["values"][titles.index("Macro F1")] == [None]


def test_recall_by_class_is_a_mean_over_seeds(tmp_path):
    confusions = []
    for seed in (0, 1):
        path = write_run(tmp_path / f"rscfed-seed{seed}", seed=seed)
        summary = summary_of(path)
        summary["confusion"][2] = [0, 0, 0, 0]  # a class without test samples
        (path / "summary.json").write_text(json.dumps(summary))
        confusions.append(np.array(summary["confusion"]))
    write_run(tmp_path / "going", tau=0.9, finished=False, stop=2)
    items = {item["name"]: item for item in comparison_of(tmp_path)["items"]}
    recalls = [np.diag(confusion) / np.maximum(confusion.sum(axis=1), 1) for confusion in confusions]
    expected = np.mean(recalls, axis=0)
    recall = items["rscfed"]["recall"]
    assert recall[2] is None
    assert [recall[n] for n in (0, 1, 3)] == pytest.approx([expected[n] for n in (0, 1, 3)], abs=1e-6)
    assert items["rscfed"]["class_names"] == [f"kind {label}" for label in range(4)]
    assert items["going, unfinished"]["recall"] == items["going, unfinished"]["class_names"] == []


def test_runs_that_did_not_count_bytes_are_compared_without(tmp_path):
    for name in "ab":
        path = write_run(tmp_path / name, tau=0.5 if name == "a" else 0.7, finished=False, stop=1)
        (path / "metrics.jsonl").write_text('{"round": 0, "accuracy": 0.5}\n{"round": 5, "accuracy": 0.75}\n')
    compared = comparison_of(tmp_path)
    assert len(compared["measures"]) == len(metrics()) == len(compared["items"][0]["values"])
