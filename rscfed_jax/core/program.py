"""Many rounds, and many experiments, as one program."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from rscfed_jax.config import Hyper
from rscfed_jax.core.algorithm import Algorithm
from rscfed_jax.core.round import init_state, one_round
from rscfed_jax.core.types import OF_A_CELL, Array, FederatedData, RoundReport, State


def _init_cells(algorithm: Algorithm, seeds: Array, clients: int, hyper: Hyper) -> State:
    """The states of G cells, which have the seeds [G] and the numbers `hyper` [G]."""

    def init(seed: Array, hyper: Hyper) -> State:
        return init_state(algorithm, jax.random.key(seed), clients, hyper)

    return jax.vmap(init, spmd_axis_name=algorithm.axis.cell_axis)(seeds, hyper)


init_cells = jax.jit(_init_cells, static_argnames=("algorithm", "clients"))
# It runs once: on CPU, to optimise it in full takes two seconds more and saves nothing.
init_cells_on_cpu = jax.jit(
    _init_cells, static_argnames=("algorithm", "clients"), compiler_options={"xla_backend_optimization_level": 1}
)


def round_of_cells(
    algorithm: Algorithm, state: State, data: FederatedData, hyper: Hyper, drawn: Array | None = None
) -> tuple[State, RoundReport]:
    """One round of G experiments: state, hyper, who holds which sample and `drawn` have a leading axis of G cells."""
    one = jax.vmap(partial(one_round, algorithm), in_axes=(0, OF_A_CELL, 0, 0), spmd_axis_name=algorithm.axis.cell_axis)
    return one(state, data, hyper, drawn)


@partial(jax.jit, static_argnames=("algorithm", "capacity"), donate_argnames="state")
def run_rounds(
    algorithm: Algorithm, state: State, data: FederatedData, hyper: Hyper, rounds: Array, *, capacity: int
) -> tuple[State, RoundReport]:
    """`rounds` rounds as one program, at most `capacity` of them, and their reports in a leading axis of `capacity`.

    The number of rounds, data and hyper are arguments: one compilation serves every cut of a run, and a resumed run is
    identical to the bit.
    """
    return _repeat_round(partial(one_round, algorithm), state, data, hyper, rounds, capacity)


@partial(jax.jit, static_argnames=("algorithm", "capacity"), donate_argnames="state")
def run_cells(
    algorithm: Algorithm,
    state: State,
    data: FederatedData,
    hyper: Hyper,
    rounds: Array,
    drawn: Array | None = None,
    *,
    capacity: int,
) -> tuple[State, RoundReport]:
    """As `run_rounds`, for the G cells of a grid at once; reports have the leading axes [capacity, G].

    Where the data are a working set, `drawn` [capacity, G, M, K] are the rows that take part in each round.
    """
    return _repeat_round(partial(round_of_cells, algorithm), state, data, hyper, rounds, capacity, drawn)


def _repeat_round(
    step: Callable[..., tuple[State, RoundReport]],
    state: State,
    data: FederatedData,
    hyper: Hyper,
    rounds: Array,
    capacity: int,
    drawn: Array | None = None,
) -> tuple[State, RoundReport]:
    step = jax.jit(step, inline=True)  # traced once, for its shapes and for the loop
    first = () if drawn is None else (drawn[0],)
    report = jax.eval_shape(step, state, data, hyper, *first)[1]
    reports = jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), report)

    def body(i: Array, carry: tuple[State, RoundReport]) -> tuple[State, RoundReport]:
        state, reports = carry
        state, report = step(state, data, hyper, *(() if drawn is None else (drawn[i],)))
        return state, jax.tree.map(lambda all_, new: all_.at[i].set(new), reports, report)

    return jax.lax.fori_loop(0, jnp.minimum(rounds, capacity), body, (state, reports))


def scan_rounds(
    algorithm: Algorithm, state: State, data: FederatedData, hyper: Hyper, *, rounds: int
) -> tuple[State, RoundReport]:
    """`rounds` rounds by `lax.scan`, for use inside a program of one's own."""

    def body(state: State, _: None) -> tuple[State, RoundReport]:
        return one_round(algorithm, state, data, hyper)

    return jax.lax.scan(body, state, length=rounds)
