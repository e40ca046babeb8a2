"""Compiled programs: equal experiments share one, and a process does not keep more and more of them."""

import gc
from pathlib import Path

import pytest

import rscfed_jax as rj
from rscfed_jax.runner import compiled
from tests.helpers import SMALL

CONFIG = rj.Config(**SMALL | {"rounds": 1, "eval_every": 1})
MAPS = Path("/proc/self/maps")


def test_a_process_keeps_a_few_programs_only(monkeypatch):
    monkeypatch.setattr(compiled, "_COMPILED", {})
    monkeypatch.setattr(compiled, "MOST", 2)
    kept = []
    for batch_size in (8, 8, 9, 10):
        rj.train(CONFIG.replace(batch_size=batch_size))
        kept.append(len(compiled._COMPILED))
    assert kept == [1, 1, 2, 1]


@pytest.mark.skipif(not MAPS.exists(), reason="needs Linux")
def test_a_program_that_is_forgotten_gives_its_memory_maps_back(monkeypatch):
    monkeypatch.setattr(compiled, "_COMPILED", {})
    rj.train(CONFIG)
    compiled.forget_programs()
    before = len(MAPS.read_text().splitlines())
    counts = []
    for batch_size in (11, 12):
        rj.train(CONFIG.replace(batch_size=batch_size))
        gc.collect()
        counts.append(len(MAPS.read_text().splitlines()) - before)
        compiled.forget_programs()
    assert counts[0] > 100
    assert counts[1] < 1.5 * counts[0]
