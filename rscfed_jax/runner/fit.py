"""How many clients fit into the memory of a device at once, according to its compiler."""

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from rscfed_jax.config import SettingError

# Part of the memory that is left free: cuDNN takes a workspace that no compiler counts.
MARGIN = {"gpu": 1 / 8, "tpu": 1 / 32}
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
TOO_MUCH = re.compile(r"(?:Used |temporaries \()([\d.]+)([KMG])")  # in what a TPU's compiler says of it


class Need(NamedTuple):
    """Bytes of one device that a program takes."""

    fixed: float  # its arguments and results, and what else lies there
    temporary: float  # while it runs; infinite if the compiler gave up without a figure

    @property
    def total(self) -> float:
        """All of it."""
        return self.fixed + self.temporary


class Fitted(NamedTuple):
    """A program that fits."""

    chunk: int
    program: Any
    need: Need
    compilations: int


def usable(limit: float, platform: str) -> float:
    """Bytes that a program may take on a device with this limit."""
    return limit * (1 - MARGIN.get(platform, 0))


def need_of(program: Any, *, resident: int = 0) -> Need:
    """What a compiled program takes, besides the `resident` bytes of other arrays."""
    memory = program.memory_analysis()
    kept = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return Need(kept + resident, memory.temp_size_in_bytes)


def fit(
    compile_: Callable[[int], Any],
    *,
    largest: int,
    budget: float,
    resident: int = 0,
    constant: int = 0,
    only: int | None = None,
) -> Fitted:
    """The largest chunk, of at most `largest` clients, whose program fits into `budget` bytes.

    A program's memory, apart from the `constant` part, grows with the chunk, so the memory of a chunk that is too large
    tells which chunk fits. This takes one or two compilations, or more if more memory is constant than was known.
    `only` is a chunk that the user asked for; it fits or is refused.
    """
    chunk, compilations, before = only or largest, 0, math.inf
    while True:
        program, need = _compiled(compile_, chunk, resident)
        compilations += 1
        if program is not None and need.total <= budget:
            return Fitted(chunk, program, need, compilations)
        if only is not None or chunk == 1:
            raise _refusal(chunk, only, need, budget)
        # A second chunk that is too large shows that less depends on the chunk than was thought.
        constant = constant if math.isinf(before) else max(constant, math.ceil(2 * need.temporary - before))
        left, grows = budget - need.fixed - constant, need.temporary - constant
        before = need.temporary
        smaller = math.floor(chunk * left / grows) if 0 < grows < math.inf else chunk // 4
        chunk = max(1, min(smaller, chunk - 1))


def _refusal(chunk: int, only: int | None, need: Need, budget: float) -> SettingError:
    takes = f"take {need.total / 2**30:.2f} GiB" if need.total < math.inf else "take more memory than the compiler says"
    clients = f"{chunk} clients at once" if chunk > 1 else "a round's arrays and one client"
    advice = "give a smaller --chunk or auto" if only not in (None, 1) else "use more devices or a smaller model"
    reason = f"{clients} {takes}, and the device has {budget / 2**30:.2f} GiB for them; {advice}"
    return SettingError("chunk", only or "auto", reason)


def _compiled(compile_: Callable[[int], Any], chunk: int, resident: int) -> tuple[Any, Need]:
    """The program for a chunk and what it takes; no program if the compiler found that it takes too much."""
    try:
        program = compile_(chunk)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        found = TOO_MUCH.search(str(error))
        used = float(found[1]) * UNITS[found[2]] if found else math.inf
        return None, Need(resident, used)
    return program, need_of(program, resident=resident)
