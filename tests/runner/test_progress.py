"""The progress of a run on the console."""

import contextlib
import os
import sys

from rscfed_jax.runner import progress
from rscfed_jax.runner.progress import RunProgress


def test_a_line_tells_the_time_left(capsys, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    with RunProgress(1000) as shown:
        shown.update(40, accuracy=0.5, seconds_per_round=1.7)
    assert capsys.readouterr().err == "round 40/1000  accuracy 50.0%  1.70 s/round  0:27:12 left\n"


def test_rounds_of_later_parts_count_after_those_before(capsys):
    with RunProgress(8) as shown:
        shown.begin_part(4, "program 2 of 2: b")
        shown.update(3, accuracy=0.5, seconds_per_round=1.0)
        shown.update(4, accuracy=0.5, seconds_per_round=1.0)
    assert capsys.readouterr().err.splitlines() == [
        "program 2 of 2: b",
        "round 8/8  accuracy 50.0%  1.00 s/round  0:00:00 left",
    ]


def test_those_who_asked_for_silence_hear_only_what_matters(capsys):
    with RunProgress(1, visible=False) as shown:
        shown.say("compiling")
        shown.update(1, accuracy=0.5, seconds_per_round=1.0)
        shown.say("a checkpoint is damaged", always=True)
    assert capsys.readouterr().err == "a checkpoint is damaged\n"


def test_a_terminal_has_a_bar(monkeypatch, capsys):
    with RunProgress(10) as shown:
        assert shown.bar is None
    monkeypatch.setenv("FORCE_COLOR", "1")
    with RunProgress(10) as shown:
        shown.begin_at(4)
        assert shown.bar.tasks[0].completed == 4
        shown.update(10, accuracy=0.5, seconds_per_round=1.0)
        assert shown.bar.tasks[0].finished
    assert "round 10/10" in capsys.readouterr().err


def test_a_run_continues_when_nobody_watches_it_any_more(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    pipe = open(writer, "w")  # noqa: SIM115 - closing it fails
    try:
        monkeypatch.setattr(sys, "stderr", pipe)
        with RunProgress(2) as shown:
            shown.say("compiling the round")
            shown.update(2, accuracy=0.5, seconds_per_round=1.0)
            shown.say("saved")
        assert shown.console.quiet
    finally:
        with contextlib.suppress(BrokenPipeError):
            pipe.close()
