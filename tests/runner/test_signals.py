"""The first signal asks a run to stop, the second ends it."""

import os
import signal
import subprocess
import sys

import pytest

from rscfed_jax.runner.signals import SIGNALS, StopSignals

WAITING = """
import time
from rscfed_jax.runner.signals import StopSignals
with StopSignals() as signals:
    print(flush=True)
    time.sleep(60)
"""


def test_a_second_signal_stops_at_once():
    with subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert b"signal again to stop immediately" in process.stderr.readline()
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 143


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_noted_and_the_handlers_come_back(number):
    before = signal.getsignal(number)
    with StopSignals() as signals:
        assert not signals.received()
        os.kill(os.getpid(), number)
        while not signals.received():
            pass
        assert signals.number == number
    assert signal.getsignal(number) is before
