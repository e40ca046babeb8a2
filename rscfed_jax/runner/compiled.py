"""Compiled programs of this process: equal experiments share one.

On CPU a program takes about 2,000 of the 65,530 memory maps that Linux grants a process, and XLA ends a process without
any left. So a process keeps a few programs only.
"""

import contextlib
import gc
from collections.abc import Hashable, Iterator
from typing import Any

import jax
import numpy as np

from rscfed_jax.core.algorithm import Algorithm
from rscfed_jax.core.program import init_cells, init_cells_on_cpu, run_cells
from rscfed_jax.runner.build import Simulation

MOST = 8  # programs that are kept
_COMPILED: dict[Hashable, Any] = {}


def compiled(algorithm: Algorithm, simulation: Simulation, *, capacity: int) -> tuple[Any, bool]:
    """`run_cells` compiled for arguments like these, and whether it had to be compiled now.

    The program takes (state, data, hyper, rounds, drawn).
    """
    drawn = None if simulation.stage is None else simulation.stage.drawn()
    arguments = (simulation.state, simulation.data, simulation.hyper, np.int32(0), drawn)
    leaves, structure = jax.tree.flatten((*arguments[:3], drawn))
    key = (algorithm, capacity, structure, *((leaf.shape, leaf.dtype, leaf.sharding) for leaf in leaves))
    new = key not in _COMPILED
    if new:
        if len(_COMPILED) >= MOST:
            forget_programs()
        with without_collections():
            lowered = run_cells.lower(algorithm, *arguments, capacity=capacity)
        _COMPILED[key] = algorithm.axis.compile(lowered)
    return _COMPILED[key], new


def forget_programs() -> None:
    """Lets go of all programs that are not running, also where JAX keeps them."""
    _COMPILED.clear()
    functions: tuple[Any, ...] = (run_cells, init_cells, init_cells_on_cpu)
    for function in functions:
        function.clear_cache()
    gc.collect()


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """No garbage is collected: tracing makes many objects that stay, and Python would look through them each time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
