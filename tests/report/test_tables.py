"""Tables as text."""

import csv

import pytest

from rscfed_jax.report.tables import as_console, as_csv, as_markdown, as_text, percent, seeds_as_text, unit_of

LINES = [["name", "accuracy"], ["rscfed", "70.26"], ["fedavg_lower", "9.1"]]


def test_columns_on_a_console_stand_below_each_other():
    assert as_console(LINES).splitlines() == [
        "name          accuracy",
        "rscfed           70.26",
        "fedavg_lower       9.1",
    ]


def test_markdown_aligns_numbers_to_the_right():
    assert as_markdown(LINES[:2]) == "| name | accuracy |\n| --- | ---: |\n| rscfed | 70.26 |\n"
    assert as_markdown(LINES[:2], left=2).splitlines()[1] == "| --- | --- |"


def test_no_text_breaks_a_markdown_table():
    assert as_markdown([["a"], ["x|y\n<b>"]]).splitlines()[2:] == ["| x\\|y &lt;b> |"]


def test_csv_keeps_every_digit_and_leaves_none_empty():
    (row,) = csv.DictReader(as_csv([{"run": "a,b", "accuracy": 0.1 + 0.2, "auc": None}]).splitlines())
    assert row == {"run": "a,b", "accuracy": "0.30000000000000004", "auc": ""}
    assert as_csv([]) == "\n"


@pytest.mark.parametrize(
    ("moments", "text"),
    [((0.70255, 0.0123), "70.25 ± 1.23"), ((0.5, None), "50.00"), ((0.5, 0.0), "50.00 ± 0.00"), (None, "–")],
)
def test_mean_and_deviation_in_percent(moments, text):
    assert percent(moments) == text


def test_a_console_gets_ascii():
    assert percent((0.5, 0.01), plus_minus="+-") == "50.00 +- 1.00"
    assert percent(None, missing="diverged") == "diverged"


@pytest.mark.parametrize(
    ("value", "text"),
    [(10000.0, "10000"), (0.1234567, "0.1234567"), (1e-7, "1e-07"), (None, "–"), (True, "True"), ("iid", "iid")],
)
def test_values_as_a_reader_writes_them(value, text):
    assert as_text(value) == text


@pytest.mark.parametrize(
    ("most", "unit"),
    [
        (0, "kB 2"),
        (4.4e6, "kB 0"),
        (13.2e6, "MB 2"),
        (333e6, "MB 1"),
        (9.99e9, "MB 0"),
        (18.5e9, "GB 2"),
        (4e15, "TB 0"),
    ],
)
def test_bytes_have_a_unit_that_keeps_them_short(most, unit):
    name, size, digits = unit_of(most)
    assert f"{name} {digits}" == unit
    assert size == {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[name[0]]


def test_seeds_that_diverged_are_counted():
    assert seeds_as_text(3, 0) == "3"
    assert seeds_as_text(3, 1) == "3 (1 diverged)"
