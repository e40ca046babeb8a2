"""How a command that trains ends: with its result, or with a line on stderr and an exit code."""

import signal
import sys
from collections.abc import Callable
from typing import Any

from rscfed_jax.config.registry import metrics
from rscfed_jax.report.tables import as_console, percent
from rscfed_jax.runner.memory import is_out_of_memory
from rscfed_jax.runner.processes import is_of_the_runtime
from rscfed_jax.runner.signals import StopSignals
from rscfed_jax.runner.signs import ONE_ENDED
from rscfed_jax.storage.run_directory import RunDirectory


def stoppable(work: Callable[[Callable[[], bool]], None], *, command: str, go_on: str) -> int:
    """Runs `work(stop)`; the exit code says whether it finished, was stopped by a signal, or diverged."""
    import jax

    from rscfed_jax.runner.history import DivergedError
    from rscfed_jax.runner.loop import Stopped

    with StopSignals() as signals:
        try:
            work(signals.received)
        except Stopped as stopped:
            print(f"{stopped}; {go_on}", file=sys.stderr)
            return 128 + (signals.number or signal.SIGTERM)  # none: another process has got it
        except DivergedError as error:
            print(
                f"rscfed-jax {command}: error: {error}; the last checkpoint is from an earlier round", file=sys.stderr
            )
            return 3
        except Exception as error:
            if is_out_of_memory(error):
                told = f"not enough memory: {_in_a_line(error)}; with more memory, {go_on}"
                print(f"rscfed-jax {command}: error: {told}", file=sys.stderr)
                return 2
            if not is_of_the_runtime(error) or jax.process_count() == 1:
                raise
            reason = _in_a_line(error)
            print(f"rscfed-jax {command}: error: another process of this run has ended: {reason}", file=sys.stderr)
            return ONE_ENDED
    return 0


def _in_a_line(error: Exception) -> str:
    """What an error says, shortened."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def print_result(summary: dict[str, Any], directory: RunDirectory) -> None:
    """Prints the metrics of a finished run, its pace and its files."""
    rows = {
        "mean of last 5 evaluations": summary["final"],
        f"best, round {summary['best']['round']} (oracle)": summary["best"],
    }
    lines = [["in percent", *metrics()]]
    for name, values in rows.items():
        known = [values.get(metric) for metric in metrics()]
        lines.append([name, *(percent(None if value is None else (value, None), missing="-") for value in known)])
    print(as_console(lines))
    form = f", {summary['conv']} convolutions" if summary.get("conv") else ""
    chunk = f", {summary['chunk']} at once" if summary.get("chunk") else ""
    print(f"{summary['seconds_per_round']:.2f} s per round on {summary['device']}{form}{chunk}")
    print(f"curve: {directory.curve}")
    print(f"run:   {directory.path}")
