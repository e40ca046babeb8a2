"""Processes to kill: forked from one that has imported everything, or started as a user would start them.

A fork spares the seconds that imports take, and tells in shared memory which of the `PHASES` it is in, so that a kill
can be aimed at one. The process that forks must not have used JAX.
"""

import contextlib
import functools
import gc
import hashlib
import mmap
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.experimental.compilation_cache.compilation_cache import reset_cache
from jax.experimental.serialize_executable import deserialize_and_load, serialize

import rscfed_jax.api  # noqa: F401 - so that a fork need not import it
from rscfed_jax import cli
from rscfed_jax.cli import commands
from rscfed_jax.core.client_axis import ClientAxis
from rscfed_jax.runner import grid, loop, start
from rscfed_jax.runner.client_states import ClientStates
from rscfed_jax.runner.program_cache import ProgramCache
from rscfed_jax.storage.checkpoint import Checkpoints
from rscfed_jax.storage.run_directory import RunDirectory

PROMPT = 0.0005  # seconds between two looks at a process
# What a kill can be aimed at: the functions in which a process is then, and about how many seconds they take.
PHASES: dict[str, tuple[list[tuple[Any, str]], float]] = {
    "data": ([(commands, "build_federation"), (commands, "programs_of")], 0.01),
    "opening": ([(RunDirectory, "open")], 0.01),
    "resumption": ([(loop.Loop, "_restore")], 0.1),
    "tracing": ([(loop, "compiled")], 1.5),
    "compilation": ([(ClientAxis, "compile")], 1.0),
    "program cache": ([(ProgramCache, "put")], 0.005),
    "warm-up": ([(loop.Loop, "_warm_up")], 0.3),
    "rounds": ([(loop.Loop, "_advance")], 0.02),
    "evaluation": ([(loop.Loop, "_log")], 0.05),
    "metrics": ([(RunDirectory, "append_metrics"), (RunDirectory, "rewrite_metrics")], 0.003),
    "checkpoint": ([(Checkpoints, "_write")], 0.03),
    "clients written": ([(ClientStates, "_write")], 0.003),
    "summary": ([(loop.Loop, "_results")], 0.3),
    "tables": ([(grid, "write_result")], 0.03),
}
QUICK = "quick"  # its programs come ready from a file
WARM = "warm"  # its programs are traced, and come compiled from the cache
COLD = "cold"  # its programs are traced and compiled
REAL = "real"  # a new interpreter, `python -m rscfed_jax`

_seen: mmap.mmap | None = None  # of a fork: for each phase, how often it began, and whether it is under way
_programs: Path | None = None  # where a fork finds ready programs, or puts them


class Place(NamedTuple):
    """Where processes find their programs and say what they have to say."""

    cache: Path
    programs: Path | None = None  # ready ones, for quick starts
    log: Path = Path(os.devnull)


def prepare() -> None:
    """Makes this process ready to be forked."""
    for number, (functions, _) in enumerate(PHASES.values()):
        for owner, name in functions:
            setattr(owner, name, _told(getattr(owner, name), number))
    loop.compiled = _ready(loop.compiled)
    use_program_cache = start.use_program_cache

    def keep_all_programs() -> None:
        use_program_cache()
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)

    start.use_program_cache = keep_all_programs
    gc.collect()
    gc.freeze()


def _told(function: Callable[..., Any], number: int) -> Callable[..., Any]:
    """The function, which says when it begins and ends."""

    @functools.wraps(function)
    def told(*arguments: Any, **named: Any) -> Any:
        if _seen is None:
            return function(*arguments, **named)
        _seen[2 * number] = min(_seen[2 * number] + 1, 255)
        _seen[2 * number + 1] = 1
        try:
            return function(*arguments, **named)
        finally:
            _seen[2 * number + 1] = 0

    return told


def _ready(compiled: Callable[..., tuple[Any, bool]]) -> Callable[..., tuple[Any, bool]]:
    """`compiled` with programs that an earlier process has left in a file."""

    def ready(algorithm: Any, simulation: Any, *, capacity: int) -> tuple[Any, bool]:
        if _programs is None:
            return compiled(algorithm, simulation, capacity=capacity)
        leaves, structure = jax.tree.flatten((simulation.state, simulation.data, simulation.hyper))
        shapes = [(leaf.shape, str(leaf.dtype)) for leaf in leaves]
        told = repr((type(algorithm.method.sample).__name__, capacity, shapes, str(structure)))
        file = _programs / hashlib.sha256(told.encode()).hexdigest()
        if file.exists():
            return deserialize_and_load(*pickle.loads(file.read_bytes())), True
        with _without_cache():
            program, new = compiled(algorithm, simulation, capacity=capacity)
        _programs.mkdir(parents=True, exist_ok=True)
        file.write_bytes(pickle.dumps(serialize(program)))
        return program, new

    return ready


@contextlib.contextmanager
def _without_cache() -> Iterator[None]:
    """A program that XLA has read from a file cannot be written to another one: functions would be missing there."""
    jax.config.update("jax_enable_compilation_cache", False)
    reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
        reset_cache()


class Process:
    """A command under way."""

    def __init__(self, arguments: Sequence[str], place: Place, *, how: str):
        self.how, self.code = how, None
        self.began = time.monotonic()
        self._seen = mmap.mmap(-1, 2 * len(PHASES))
        self._child: subprocess.Popen[bytes] | None = None
        environment = {"JAX_COMPILATION_CACHE_DIR": str(place.cache)}
        if how == REAL:
            command = [sys.executable, "-m", "rscfed_jax", *arguments]
            with place.log.open("ab") as log:
                quiet = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
                self._child = subprocess.Popen(command, env=os.environ | environment, **quiet)
            self.pid = self._child.pid
            return
        self.pid = os.fork()
        if self.pid == 0:
            self._be(arguments, place, environment)

    def _be(self, arguments: Sequence[str], place: Place, environment: dict[str, str]) -> None:
        """The life of a fork."""
        global _seen, _programs
        code = 70
        try:
            quiet = os.open(os.devnull, os.O_RDONLY), os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            for number, file in enumerate((quiet[0], quiet[1], quiet[1])):
                os.dup2(file, number)
            os.environ |= environment
            jax.config.update("jax_compilation_cache_dir", environment["JAX_COMPILATION_CACHE_DIR"])
            _seen, _programs = self._seen, place.programs if self.how == QUICK else None
            code = cli.main(list(arguments))
            sys.stdout.flush()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        finally:
            os._exit(code)

    def ended(self) -> bool:
        """Whether it has ended; then its code is known."""
        if self.code is None:
            if self._child is not None:
                self.code = self._child.poll()
            else:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def wait(self, seconds: float, until: Callable[[], bool] = lambda: False, *, often: float = 0.01) -> bool:
        """Waits for its end, or until something else is so, or for so long; returns whether one of both came.

        Time in which this process was stopped itself does not count.
        """
        now = time.monotonic()
        while not self.ended() and not until():
            if seconds <= 0:
                return False
            time.sleep(often)
            before, now = now, time.monotonic()
            seconds -= min(now - before, 1.0)
        return True

    def kill(self) -> None:
        """Ends it as the system would: it is not asked."""
        if not self.ended():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.wait(600, often=0.002)

    def has_begun(self, phase: str, times: int) -> bool:
        """Whether a phase has begun so often."""
        return self._seen[2 * list(PHASES).index(phase)] >= times

    def inside(self) -> list[str]:
        """The phases that it is in, or was in when it was killed."""
        return [name for number, name in enumerate(PHASES) if self._seen[2 * number + 1]]
