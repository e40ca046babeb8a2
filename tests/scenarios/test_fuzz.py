"""The fuzzer itself: its cases run, it sees what is wrong, and a case can be repeated."""

import importlib
import random

import pytest

from rscfed_jax.cli import commands
from tests.helpers import ROOT


@pytest.fixture
def fuzz(monkeypatch):
    """The script, as a module."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr(commands, "start_jax", commands.start_jax)  # which it replaces
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    return importlib.import_module("fuzz")


def test_some_cases_of_every_target_are_taken_or_refused_in_one_line(fuzz):
    for target in fuzz.TARGETS:
        for number in range(2):
            assert fuzz.try_case(target, 0, number)[2] is None, (target, number)


def test_a_case_is_known_by_its_seed(fuzz):
    for target, make in fuzz.TARGETS.items():
        first, again, other = (make(random.Random(f"{target} {seed} 5")) for seed in (0, 0, 1))
        assert first == again
        assert first != other


@pytest.mark.parametrize(
    ("code", "said", "files", "wrong"),
    [
        (0, "", {"new": b""}, None),
        (2, "rscfed-jax: error: --beta x\n", {}, None),
        (90, "", {}, None),
        (1, "Traceback\nTypeError: x\n", {}, "ended with 1: TypeError: x"),
        ("longer than 60 s", "", {}, "ended with longer than 60 s: "),
        (2, "", {}, "said 0 lines: ''"),
        (2, "rscfed-jax: error: a\nb\n", {}, "said 2 lines"),
        (2, "rscfed-jax: error: a\n", {"new": b""}, "was refused, but wrote ['new']"),
    ],
)
def test_it_sees_what_is_wrong(fuzz, code, said, files, wrong):
    found = fuzz.wrong_with(code, said, {}, files)
    assert found == wrong if wrong is None else found.startswith(wrong)
