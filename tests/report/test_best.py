"""The best lines of a report."""

import pytest

from rscfed_jax.report.best import best_lines
from rscfed_jax.report.collect import collect
from rscfed_jax.report.seeds import build_report
from tests.report.runs import write_run


def best_of(path, name="accuracy"):
    """The names of the lines that are best by a final metric."""
    report = build_report(collect([path]))
    return [report.lines[number].name for number in sorted(best_lines(report, lambda line: line.final, [name])[name])]


@pytest.fixture
def two(tmp_path):
    """A run, and one that is behind it in every metric."""
    write_run(tmp_path / "ahead", tau=0.5)
    write_run(tmp_path / "after", tau=0.9, behind=0.1)
    return tmp_path


def test_the_highest_is_the_best_but_the_lowest_error(two):
    assert best_of(two) == best_of(two, "f1") == ["ahead"]
    assert best_of(two, "calibration_error") == ["after"]


def test_an_unfinished_run_counts_only_among_its_like(tmp_path):
    write_run(tmp_path / "going", tau=0.5, finished=False, stop=5)
    write_run(tmp_path / "after", tau=0.9, behind=0.1, finished=False, stop=5)
    assert best_of(tmp_path) == ["going, unfinished"]
    write_run(tmp_path / "whole", tau=0.7, behind=0.1)
    assert best_of(tmp_path) == ["whole"]


def test_equal_numbers_are_all_the_best(two):
    write_run(two / "again", tau=0.6, behind=1e-7)  # its name is as long, so that it draws the same numbers
    assert set(best_of(two)) == {"ahead", "again"}


def test_a_metric_that_a_run_lacks_is_compared_among_the_others(two):
    write_run(two / "old", tau=0.6, old=True)
    assert best_of(two, "f1") == ["ahead"]


@pytest.mark.parametrize("settings", [{"dataset": "svhn"}, {"validation": 0.1}])
def test_nobody_is_best_where_test_sets_differ(two, settings):
    write_run(two / "other", **settings)
    assert best_of(two) == []


def test_a_single_line_is_not_the_best(tmp_path):
    write_run(tmp_path / "run")
    assert best_of(tmp_path) == []
