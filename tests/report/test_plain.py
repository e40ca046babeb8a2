"""The report as Markdown and as CSV."""

import csv
import json

import pytest

from rscfed_jax.config.registry import metrics
from rscfed_jax.report.collect import collect
from rscfed_jax.report.plain import report_as_csv, report_as_markdown
from rscfed_jax.report.seeds import build_report
from tests.report.runs import write_run


@pytest.fixture
def runs(tmp_path):
    """Runs of two methods, one of them with two seeds, the other of an older version."""
    for seed in (0, 1):
        write_run(tmp_path / f"rscfed-seed{seed}", seed=seed, behind=0.1)
    write_run(tmp_path / "fedavg|_x", method="fedavg", old=True)
    return tmp_path


def test_the_csv_has_full_numbers(runs):
    alone, together = csv.DictReader(report_as_csv(build_report(collect([runs]))).splitlines())
    summary = json.loads((runs / "fedavg|_x" / "summary.json").read_text())
    for part in ("final", "best"):
        for name in metrics():
            assert alone[f"{part}_{name}"] == str(summary[part].get(name, ""))
            assert alone[f"{part}_{name}_std"] == ""
            assert float(together[f"{part}_{name}_std"]) > 0
    assert alone["best_round"] == f"{summary['best']['round']}.0"
    assert (together["run"], together["seeds"], together["method"]) == ("rscfed", "2", "rscfed")
    sent = {"models_up": 36, "models_down": 24, "bytes_up": 13_200_000, "bytes_down": 9_000_000}
    assert {name: float(together[name]) for name in sent} == sent


def test_the_markdown_is_whole_tables(runs):
    lines = report_as_markdown(build_report(collect([runs]))).splitlines()
    summary = json.loads((runs / "fedavg|_x" / "summary.json").read_text())
    row = next(line for line in lines if line.startswith("| fedavg\\|_x | 1 |"))
    assert f"| {100 * summary['final']['accuracy']:.2f} |" in row
    assert "| – |" in row
    head = next(line for line in lines if line.startswith("| Run | Seeds |"))
    assert row.replace("\\|", "").count("|") == head.count("|")
    assert "Final macro F1 | Final calibration error | Best accuracy | Best AUC | Best round |" in head
    assert "| rscfed | rscfed |" in lines


def test_pseudo_labels_are_told_only_where_some_line_has_them(runs):
    without = build_report(collect([runs]))
    assert "kept_share" not in report_as_csv(without)
    assert "Pseudo-labels" not in report_as_markdown(without)
    path = write_run(runs / "fedirm", method="fedirm", pseudo_labels=True)
    report = build_report(collect([runs]))
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    mean = sum(record["kept_share"] for record in records[-5:]) / 5
    rows = {row["run"]: row for row in csv.DictReader(report_as_csv(report).splitlines())}
    assert float(rows["fedirm"]["kept_share"]) == pytest.approx(mean)
    assert rows["rscfed"]["kept_share"] == rows["rscfed"]["kept_share_std"] == ""
    lines = report_as_markdown(report).splitlines()
    head = lines.index("| Run | Seeds | Share of samples kept | Accuracy of kept labels |")
    assert lines[head + 2].startswith(f"| fedirm | 1 | {100 * mean:.2f} |")
    assert lines[head + 3] == ""
