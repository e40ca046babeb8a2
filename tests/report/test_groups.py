"""Runs that differ only in their seed are one line; what does not compare is said."""

from statistics import fmean, stdev

import pytest

from rscfed_jax.report.collect import collect
from rscfed_jax.report.groups import build_report
from tests.report.runs import write_run


def report_of(path):
    return build_report(collect([path]))


def test_seeds_are_one_line_with_mean_and_standard_deviation(tmp_path):
    for seed in range(3):
        write_run(tmp_path / f"rscfed-seed{seed}", seed=seed)
    report = report_of(tmp_path)
    (group,) = report.groups
    accuracies = [run.final["accuracy"] for run in group.runs]
    assert len(set(accuracies)) == 3
    assert group.name == "rscfed"
    assert group.final["accuracy"] == pytest.approx((fmean(accuracies), stdev(accuracies)))
    assert group.best["round"][0] == pytest.approx(fmean(run.best["round"] for run in group.runs))
    assert [point.round for point in group.points] == list(range(7))
    at_two = [run.records[2]["auc"] for run in group.runs]
    assert group.points[2].metrics["auc"] == pytest.approx((fmean(at_two), stdev(at_two)))
    assert report.differing == []
    assert report.notes == []


def test_settings_that_differ_are_told_from_those_in_common(tmp_path):
    write_run(tmp_path / "a", beta=0.0)
    write_run(tmp_path / "b", beta=5.0, method="fedavg", seed=4)
    report = report_of(tmp_path)
    assert set(report.differing) == {"beta", "beta_labeled", "method"}
    assert report.common["clients"] == 5
    assert "seed" not in report.common
    assert [group.final["auc"][1] for group in report.groups] == [None, None]


def test_an_unfinished_run_is_never_averaged_with_a_finished_one(tmp_path):
    write_run(tmp_path / "rscfed-seed0", seed=0)
    write_run(tmp_path / "rscfed-seed1", seed=1, finished=False, stop=2)
    report = report_of(tmp_path)
    assert [group.name for group in report.groups] == ["rscfed", "rscfed-seed1, unfinished"]
    assert any("seed1 is not finished, evaluated up to round 2 of 6" in note for note in report.notes)
    assert any("No confusion matrix for" in note and "last round" in note for note in report.notes)


def test_a_cell_that_diverged_is_said_to_have(tmp_path):
    path = write_run(tmp_path / "cell", finished=False, stop=2)
    (path / "diverged.json").write_text('{"round": 3, "why": "no longer finite after round 3"}')
    report = report_of(tmp_path)
    assert report.groups[0].name == "cell, diverged"
    assert "cell diverged (no longer finite after round 3), evaluated up to round 2 of 6" in report.notes[0]


def test_runs_of_several_data_sets_are_allowed_and_said(tmp_path):
    write_run(tmp_path / "a", dataset="fashion")
    write_run(tmp_path / "b", dataset="svhn")
    assert "different data sets (fashion, svhn)" in report_of(tmp_path).notes[0]


def test_numbers_of_validation_samples_are_said_to_be_such(tmp_path):
    write_run(tmp_path / "a", validation=0.1)
    assert report_of(tmp_path).notes[0].startswith("The runs have training samples, held out by --validation")
    write_run(tmp_path / "b", tau=0.7)
    assert report_of(tmp_path).notes[0].startswith("1 of the runs have")


def test_a_seed_that_is_there_twice_is_said(tmp_path):
    write_run(tmp_path / "x" / "rscfed")
    write_run(tmp_path / "y" / "rscfed")
    report = report_of(tmp_path)
    assert report.notes == ["rscfed: seed 0 is there 2 times, and counted so."]


def test_groups_have_different_names(tmp_path):
    for place in ("x", "y"):
        write_run(tmp_path / place / "same", tau=0.5 if place == "x" else 0.7)
    for seed in (0, 1):
        write_run(tmp_path / f"unfinished{seed}" / "same", seed=seed, finished=False, stop=2, tau=0.7)
    names = [group.name for group in report_of(tmp_path).groups]
    assert len(set(names)) == 4
    assert names[-2] == "same (tau 0.5)"


def test_what_an_older_run_does_not_tell_is_said(tmp_path):
    write_run(tmp_path / "old", old=True)
    write_run(tmp_path / "new", tau=0.9)
    notes = " ".join(report_of(tmp_path).notes)
    for what in ("class histogram", "weights of clients", "confusion matrix"):
        assert f"No {what} for {tmp_path}/old:" in notes
