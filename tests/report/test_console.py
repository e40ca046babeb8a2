"""The report on a terminal."""

import io
from pathlib import Path

from rscfed_jax.report.collect import collect
from rscfed_jax.report.console import BARS, PLAIN_BARS, WIDTH, curve_of, letters_for, report_as_console, sparkline
from rscfed_jax.report.seeds import build_report

RUNS = Path(__file__).parents[2] / "benchmarks" / "results" / "methods"


def test_letters_grow_with_the_value_and_share_a_scale():
    assert sparkline([0.0, 0.5, 1.0], low=0.0, high=1.0) == BARS[0] + BARS[4] + BARS[7]
    assert sparkline([0.3, 0.3], low=0.3, high=0.3) == BARS[0] * 2
    assert sparkline([], low=0.0, high=1.0) == ""


def test_the_best_line_comes_first_with_its_curve():
    report = build_report(collect([RUNS / f"{name}-seed{seed}" for name in ("rscfed", "semifl") for seed in range(3)]))
    head, first, second = report_as_console(report).splitlines()
    assert head.split()[:3] == ["in", "percent", "seeds"]
    assert first.startswith("semifl")
    assert second.startswith("rscfed")
    assert first.split()[1] == "3"
    assert len(first.split()[-1]) == min(WIDTH, len(report.lines[0].evaluations))
    assert curve_of(report.lines[0])[-1] == report.lines[0].evaluations[-1].metrics["accuracy"][0]
    assert max(map(len, (head, first, second))) < 100


def test_a_terminal_without_blocks_gets_letters():
    assert letters_for(io.TextIOWrapper(io.BytesIO(), encoding="ascii")) == PLAIN_BARS
    assert letters_for(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")) == BARS
    assert sparkline([0.0, 1.0], low=0.0, high=1.0, letters=PLAIN_BARS) == "_@"
