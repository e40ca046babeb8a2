"""How many clients fit into the memory of a device at once, according to its compiler."""

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from rscfed_jax.config import SettingError

# Part of the memory that is left free: cuDNN takes a workspace that no compiler counts.
MARGIN = {"gpu": 1 / 8, "tpu": 1 / 32}
# Part of what a step saves for its backward pass that a compiled round takes for each client: of ResNet-18 0.56 to 0.62
# on GPUs and 0.75 on a v5e. The rest is computed again, or never written.
TAKEN = {"gpu": 0.62, "tpu": 0.75}
LEAST = 1 / 2  # of what a client is thought to take, that it takes at any rate
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


def client_bytes(saved: int, platform: str) -> float:
    """Bytes that each client at once probably takes, if its step saves so many for the backward pass."""
    return saved * TAKEN.get(platform, 1)


def fit(
    compile_: Callable[[int], Any],
    *,
    slots: int,
    largest: int,
    budget: float,
    each: float,
    fixed: int = 0,
    resident: int = 0,
    constant: int = 0,
    only: int | None = None,
) -> Fitted:
    """The most clients at once, at most `largest`, whose program fits into `budget` bytes; `slots` are all of a device.

    A program takes `fixed` and `resident` bytes, `constant` ones while it runs, and more with each client at once:
    probably `each`, from which the first chunk follows. Its memory then tells whether more would fit, if they make
    fewer chunks of the slots, or how many fewer do even if a client takes half of `each`. So this takes one or two
    compilations. If a client takes still less and the rest is constant, a third has one client. `only` is a chunk that
    the user asked for; it fits or is refused.
    """

    def attempt(chunk: int, number: int) -> tuple[Fitted, bool]:
        program, need = _compiled(compile_, chunk, resident)
        return Fitted(chunk, program, need, number), program is not None and need.total <= budget

    guess = math.floor((budget - fixed - resident - constant) / each)
    first, fits = attempt(only or max(1, min(largest, guess)), 1)
    chunk, need = first.chunk, first.need
    if fits and only is None:
        # If more is constant than was known, a client takes less than this, and the larger chunk fits all the more.
        grows = max(need.temporary - constant, 1)
        more = min(largest, math.floor(chunk * (budget - need.fixed - constant) / grows))
        if -(-slots // max(more, chunk)) < -(-slots // chunk):
            second, fits = attempt(more, 2)
            return second if fits else first._replace(compilations=2)
    if fits:
        return first
    last = first
    if only is None and chunk > 1:
        fewer = math.ceil((need.total - budget) / (LEAST * each)) if need.total < math.inf else chunk - chunk // 4
        last, fits = attempt(max(1, chunk - fewer), 2)
        if not fits and last.chunk > 1:
            last, fits = attempt(1, 3)
    if not fits:
        raise _refusal(last.chunk, only, last.need, budget)
    return last


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
