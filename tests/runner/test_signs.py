"""Signs of life: who is taken for dead, and how processes end together."""

import os
import queue
import threading
import time

import pytest

from rscfed_jax.runner import signs
from rscfed_jax.runner.signs import Signs, Watch


class Store(dict):
    """The coordinator's store, as JAX's client offers it; `away`: it does not answer."""

    def __init__(self, *signs, away=False):
        super().__init__(*signs)
        self._away = away

    def key_value_set(self, key, value, *, allow_overwrite):
        """Keeps a value."""
        assert allow_overwrite
        if self._away:
            raise RuntimeError("UNAVAILABLE")
        self[key] = value

    def key_value_try_get(self, key):
        """What is kept; an error if nothing is."""
        return self[key]


@pytest.fixture
def codes(monkeypatch):
    """The exit codes with which a watch would have ended this process."""
    collected = queue.Queue()
    monkeypatch.setattr(os, "_exit", collected.put)
    return collected


@pytest.fixture
def watch(monkeypatch, codes):
    """Makes a watch with beats of a hundredth of a second, which does not outlive the test."""
    monkeypatch.setattr(signs, "BEAT", 0.01)
    monkeypatch.setattr(signs, "LAST_BEAT", 0.01)
    made = []

    def make(store, *, number, process):
        made.append(Watch(store, number=number, process=process))
        return made[-1]

    yield make
    for each in made:
        each._over.set()


def test_a_process_is_silent_only_while_this_one_is_awake_and_hears_nothing():
    first, second = Signs(3, 0), Signs(3, 1)
    for _ in range(signs.PATIENCE // 10):
        first.note(1, "same")
        assert first.pass_time(10) is None
    first.note(2, "new")
    assert first.pass_time(10) == 1
    assert second.pass_time(signs.PATIENCE) is None
    assert second.pass_time(1) == 0  # of the third it knows nothing: the first would end for it


def test_processes_end_together_when_the_first_is_done(watch):
    store = Store()
    first, *others = [watch(store, number=3, process=process) for process in range(3)]
    ends = [threading.Thread(target=other.end, daemon=True) for other in others]
    for end in ends:
        end.start()
    ends[0].join(0.3)
    assert all(end.is_alive() for end in ends)
    first.end()
    for end in ends:
        end.join(60)
        assert not end.is_alive()


def test_the_first_process_does_not_end_before_the_others_know_that_it_is_done(watch):
    store = Store()
    first, second = [watch(store, number=2, process=process) for process in range(2)]
    end = threading.Thread(target=first.end, daemon=True)
    end.start()
    end.join(0.3)
    assert end.is_alive()
    second.end()
    end.join(60)
    assert not end.is_alive()


def test_the_first_process_does_not_wait_for_ever_once_it_is_done(monkeypatch, watch, codes):
    monkeypatch.setattr(signs, "PATIENCE", 0.2)
    watch(Store(), number=2, process=0).end()
    assert codes.empty()


def test_a_silent_coordinator_ends_the_process_in_a_line(monkeypatch, watch, codes, capsys):
    monkeypatch.setattr(signs, "PATIENCE", 0.2)
    watch(Store(away=True), number=2, process=1)
    assert codes.get(timeout=60) == 4
    assert capsys.readouterr().err == (
        "rscfed-jax: error: another process of this run has ended: process 0 has given no sign of life for 0.2 s\n"
    )


def test_a_process_that_is_done_waits_for_the_first_while_that_gives_signs(monkeypatch, watch, codes):
    monkeypatch.setattr(signs, "PATIENCE", 0.5)
    store = Store({"rscfed_jax/alive/0": "0"})
    end = threading.Thread(target=watch(store, number=2, process=1).end, daemon=True)
    end.start()
    for count in range(20):
        store["rscfed_jax/alive/0"] = str(count)
        end.join(0.1)
    assert end.is_alive()
    end.join(60)
    assert not end.is_alive()
    assert codes.empty()


def test_the_watch_does_not_need_a_sleep(monkeypatch, watch):
    def invalid(seconds):
        raise OSError(22, "Invalid argument")  # as with a library that fakes the time

    monkeypatch.setattr(time, "sleep", invalid)
    store = Store()
    one = watch(store, number=2, process=1)
    until = time.monotonic() + 20
    while int(store.get("rscfed_jax/alive/1", "0")) < 3 and time.monotonic() < until:
        threading.Event().wait(0.01)
    assert int(store["rscfed_jax/alive/1"]) >= 3
    store["rscfed_jax/alive/0"] = signs.DONE
    one.end()
