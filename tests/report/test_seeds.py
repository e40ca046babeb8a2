"""Runs that differ only in their seed are one line; what does not compare is said."""

from statistics import fmean, stdev

import pytest

from rscfed_jax.config.registry import metrics
from rscfed_jax.report.collect import collect
from rscfed_jax.report.seeds import build_report, in_a_sentence, moments
from tests.report.runs import change_config, write_run


def report_of(path):
    return build_report(collect([path]))


def test_seeds_are_one_line_with_mean_and_standard_deviation(tmp_path):
    for seed in range(3):
        write_run(tmp_path / f"rscfed-seed{seed}", seed=seed)
    report = report_of(tmp_path)
    (line,) = report.lines
    accuracies = [run.final["accuracy"] for run in line.runs]
    assert len(set(accuracies)) == 3
    assert line.name == "rscfed"
    assert line.final["accuracy"] == pytest.approx((fmean(accuracies), stdev(accuracies)))
    assert line.best["round"][0] == pytest.approx(fmean(run.best["round"] for run in line.runs))
    assert [evaluation.round for evaluation in line.evaluations] == list(range(7))
    at_two = [run.records[2]["auc"] for run in line.runs]
    assert line.evaluations[2].metrics["auc"] == pytest.approx((fmean(at_two), stdev(at_two)))
    assert report.differing == []
    assert report.notes == []


def test_settings_that_differ_are_told_from_those_in_common(tmp_path):
    write_run(tmp_path / "a", beta=0.0)
    write_run(tmp_path / "b", beta=5.0, method="fedavg", seed=4)
    report = report_of(tmp_path)
    assert set(report.differing) == {"beta", "beta_labeled", "method"}
    assert report.common["clients"] == 5
    assert "seed" not in report.common
    assert [line.final["auc"][1] for line in report.lines] == [None, None]


def test_the_most_accurate_line_comes_first(tmp_path):
    for name, behind in (("b", 0.0), ("c", 0.1), ("a", 0.05)):
        write_run(tmp_path / name, tau=0.5 + behind, behind=behind, finished=name != "b", stop=6)
    report = report_of(tmp_path)
    assert [line.name for line in report.lines] == ["b, unfinished", "a", "c"]
    assert report.run_names == ["b, unfinished, seed 0", "a, seed 0", "c, seed 0"]


def test_seeds_that_start_from_models_of_their_own_are_one_line(tmp_path):
    for seed in (0, 1):
        change_config(write_run(tmp_path / f"a-seed{seed}", seed=seed), init_from=f"runs/start-seed{seed}")
    change_config(write_run(tmp_path / "b-seed0", seed=0, tau=0.7), init_from="runs/start-seed0")
    report = report_of(tmp_path)
    assert sorted(len(line.runs) for line in report.lines) == [1, 2]
    assert report.differing == ["tau"]
    assert report.common["init_from"] == "runs/start-seed*"
    assert report_of(tmp_path / "b-seed0").common["init_from"] == "runs/start-seed0"


def test_a_start_of_another_seed_is_another_line(tmp_path):
    for seed, start in ((0, "start-seed0"), (1, "start-seed0"), (1, "start-seed10")):
        change_config(write_run(tmp_path / f"{start}-{seed}", seed=seed), init_from=start)
    report = report_of(tmp_path)
    assert [len(line.runs) for line in report.lines] == [1, 1, 1]
    assert report.differing == ["init_from"]


def test_an_unfinished_run_is_never_averaged_with_a_finished_one(tmp_path):
    write_run(tmp_path / "rscfed-seed0", seed=0)
    write_run(tmp_path / "rscfed-seed1", seed=1, finished=False, stop=2)
    report = report_of(tmp_path)
    assert [line.name for line in report.lines] == ["rscfed", "rscfed-seed1, unfinished"]
    assert any("seed1 is not finished, evaluated up to round 2 of 6" in note for note in report.notes)
    assert any("No confusion matrix for" in note and "last round" in note for note in report.notes)


def test_a_cell_that_diverged_is_said_to_have(tmp_path):
    path = write_run(tmp_path / "cell", finished=False, stop=2)
    (path / "diverged.json").write_text('{"round": 3, "why": "no longer finite after round 3"}')
    report = report_of(tmp_path)
    assert report.lines[0].name == "cell, diverged"
    assert "cell diverged (no longer finite after round 3), evaluated up to round 2 of 6" in report.notes[0]


def test_runs_of_several_data_sets_are_allowed_and_said(tmp_path):
    write_run(tmp_path / "a", dataset="fashion")
    write_run(tmp_path / "b", dataset="svhn")
    assert "different data sets (fashion, svhn)" in report_of(tmp_path).notes[0]


def test_numbers_of_validation_samples_are_said_to_be_such(tmp_path):
    write_run(tmp_path / "a", validation=0.1)
    assert (
        report_of(tmp_path).notes[0].startswith("The runs were evaluated on training samples held out by --validation")
    )
    write_run(tmp_path / "b", tau=0.7)
    assert report_of(tmp_path).notes[0].startswith("1 of the runs were")


def test_a_seed_that_is_there_twice_is_said(tmp_path):
    write_run(tmp_path / "x" / "rscfed")
    write_run(tmp_path / "y" / "rscfed")
    report = report_of(tmp_path)
    assert report.notes == ["rscfed: 2 runs have seed 0; each of them counts."]


def test_lines_have_different_names(tmp_path):
    for place in ("x", "y"):
        write_run(tmp_path / place / "same", tau=0.5 if place == "x" else 0.7)
    for seed in (0, 1):
        write_run(tmp_path / f"unfinished{seed}" / "same", seed=seed, finished=False, stop=2, tau=0.7)
    names = [line.name for line in report_of(tmp_path).lines]
    assert len(set(names)) == 4
    assert "same (tau 0.5)" in names


def test_the_lines_of_a_grid_over_methods_are_called_like_the_methods(tmp_path):
    for method in ("rscfed", "fed-consist"):
        for seed in (0, 1):
            write_run(tmp_path / f"method-{method}-seed{seed}", method=method.replace("-", "_"), seed=seed)
    write_run(tmp_path / "method-of-mine", method="fedavg")
    assert {line.name for line in report_of(tmp_path).lines} == {"rscfed", "fed-consist", "method-of-mine"}


def test_a_number_at_the_end_of_a_name_is_a_seed_only_where_it_alone_differs(tmp_path):
    write_run(tmp_path / "gamma-0.1", seed=1, gamma=0.1)
    write_run(tmp_path / "beta-0", seed=0, beta=0.0)
    for seed in (0, 1):
        write_run(tmp_path / f"run-{seed}", seed=seed, tau=0.7)
    assert {line.name for line in report_of(tmp_path).lines} == {"gamma-0.1", "beta-0", "run"}


def test_what_an_older_run_lacks_is_said(tmp_path):
    write_run(tmp_path / "old", old=True)
    write_run(tmp_path / "new", tau=0.9)
    notes = " ".join(report_of(tmp_path).notes)
    for what in ("class histogram", "weights of clients", "confusion matrix"):
        assert f"No {what} for {tmp_path}/old:" in notes


def test_moments_are_of_the_numbers_that_are_there():
    assert moments([1.0, None, 3.0, float("nan")]) == pytest.approx((2.0, stdev([1.0, 3.0])))
    assert moments(iter([0.5])) == (0.5, None)
    assert moments([None, float("nan")]) is None
    assert moments([]) is None


def test_metrics_that_only_some_runs_have_are_said_in_one_note(tmp_path):
    write_run(tmp_path / "old", old=True)
    note = (
        f"No balanced accuracy, macro F1, calibration error for {tmp_path}/old: they are in no line of metrics.jsonl."
    )
    assert note not in report_of(tmp_path).notes  # nothing to compare it with
    write_run(tmp_path / "new", tau=0.9)
    assert note in report_of(tmp_path).notes


def test_a_run_of_version_0_1_is_a_seed_beside_newer_ones(tmp_path):
    write_run(tmp_path / "rscfed-seed0", seed=0, old=True)
    write_run(tmp_path / "rscfed-seed1", seed=1)
    write_run(tmp_path / "rscfed-seed2", seed=2)
    (line,) = report_of(tmp_path).lines
    assert [run.seed for run in line.runs] == [0, 1, 2]
    newer = [run.final["f1"] for run in line.runs[1:]]
    assert line.final["f1"] == pytest.approx((fmean(newer), stdev(newer)))
    assert line.evaluations[2].metrics["f1"] is not None
    assert set(line.final) == set(metrics())


@pytest.mark.parametrize("key", ["method_hash", "model_hash"])
def test_two_methods_of_one_name_are_never_seeds_of_one_line(tmp_path, key):
    name = key.removesuffix("_hash")
    for seed, hash_ in enumerate(["aaaa", "aaaa", "bbbb"]):
        change_config(write_run(tmp_path / f"mine-seed{seed}", seed=seed), **{name: "mine", key: hash_})
    report = report_of(tmp_path)
    assert [[run.seed for run in line.runs] for line in report.lines] == [[0, 1], [2]]
    assert report.differing == [key]


def test_hashes_are_shown_only_where_there_are_some(tmp_path):
    write_run(tmp_path / "a", beta=0.0)
    write_run(tmp_path / "b", beta=5.0)
    assert not {"method_hash", "model_hash"} & (set(report_of(tmp_path).common) | set(report_of(tmp_path).differing))
    for name in "ab":
        change_config(tmp_path / name, method="mine", method_hash="aaaa")
    report = report_of(tmp_path)
    assert report.common["method_hash"] == "aaaa"
    assert "model_hash" not in report.common


def test_a_methods_own_settings_are_compared_among_its_runs(tmp_path):
    write_run(tmp_path / "rscfed")
    for name, share in (("x", 0.1), ("y", 0.2)):
        change_config(write_run(tmp_path / name), method="mine", method_hash="aaaa", mine_share=share, mine_depth=3)
    report = report_of(tmp_path)
    assert report.differing == ["method", "method_hash", "mine_share"]
    assert report.common["mine_depth"] == 3


def test_abbreviations_keep_their_capitals_in_a_sentence():
    assert [in_a_sentence(title) for title in ("Accuracy", "AUC", "Macro F1")] == ["accuracy", "AUC", "macro F1"]
