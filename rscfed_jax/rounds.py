"""One round of a federation as a pure function, and many rounds as one program."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from rscfed_jax.aggregation import Members, global_mean
from rscfed_jax.clients import CLIENTS, ONE_AT_A_TIME, ClientAxis
from rscfed_jax.config import Hyper
from rscfed_jax.data.table import OF_A_CELL, FederatedData
from rscfed_jax.faults import NO_FAULTS, Faults
from rscfed_jax.local.objective import Bulletin
from rscfed_jax.local.training import ClientState, LocalTraining, init_client, train_client
from rscfed_jax.methods.base import Method
from rscfed_jax.repeat import Repeat, Trained, retrain, share
from rscfed_jax.schedule import NOBODY
from rscfed_jax.types import Array, Model

Tree = TypeVar("Tree")


@dataclass(frozen=True)
class Algorithm:
    """All that is static about a round; equal algorithms share one compiled program."""

    method: Method
    local: LocalTraining
    repeat: Repeat = retrain
    axis: ClientAxis = ONE_AT_A_TIME
    faults: Faults = NO_FAULTS
    keeps_clients: bool = True  # clients keep teacher and momentum from one selection to the next


class State(NamedTuple):
    """What changes from round to round."""

    round: Array  # int32
    key: Array  # of the whole experiment; never changes
    model: Model  # the global model
    initial_model: Model  # from which teachers start
    memory: Any  # what the method's server remembers beside the model; None for most
    clients: ClientState | None  # stacked over N clients and rows of padding, as many for each device; None: not kept
    models_down: Array  # int32: models sent to clients so far
    models_up: Array  # int32: models sent to the server so far


class RoundReport(NamedTuple):
    """What a round tells about itself."""

    subsets: Array  # [M, K] client ids
    weights: Array  # [M, K] of each model in its subset
    distances: Array  # [M, K] from the subset's mean
    labeled_loss: Array  # mean over the steps of clients with labels; NaN if none takes part
    consistency_loss: Array  # mean over the steps of clients with unlabeled samples; NaN if none takes part
    broken: Array  # [M, K] bool: the client answered with a model that is not finite
    dropped: Array  # [M, K] bool: the client did not answer
    attackers: Array  # [M, K] bool: the client's model was corrupted on purpose
    finite: Array  # bool: the new global model is


@partial(jax.jit, static_argnames=("algorithm", "clients"))
def init_state(algorithm: Algorithm, key: Array, clients: int, hyper: Hyper) -> State:
    """A federation before its first round: the initial model, and clients that were never selected."""
    local = algorithm.local
    images = jnp.zeros((3, local.image_size, local.image_size, 1), local.network.dtype)
    model = dict(local.network.init(jax.random.fold_in(key, 0), images, train=False))
    client = init_client(model, hyper, with_teacher=local.with_teacher) if algorithm.keeps_clients else None
    rows = algorithm.axis.rows(clients)
    stacked = jax.tree.map(lambda leaf: jnp.zeros((rows, *leaf.shape), leaf.dtype), client)
    return place_state(
        algorithm.axis,
        State(
            round=jnp.int32(0),
            key=key,
            model=model,
            initial_model=jax.tree.map(jnp.copy, model),
            memory=algorithm.method.memory(local.network),
            clients=stacked,
            models_down=jnp.int32(0),
            models_up=jnp.int32(0),
        ),
    )


@partial(jax.jit, static_argnames=("algorithm", "clients"))
def init_cells(algorithm: Algorithm, seeds: Array, clients: int, hyper: Hyper) -> State:
    """The states of G cells, which have the seeds [G] and the numbers `hyper` [G]."""

    def init(seed: Array, hyper: Hyper) -> State:
        return init_state(algorithm, jax.random.key(seed), clients, hyper)

    return jax.vmap(init, spmd_axis_name=algorithm.axis.cell_axis)(seeds, hyper)


def place_state(axis: ClientAxis, state: State) -> State:
    """A state where the rounds want it: clients spread over the devices, the rest on every one."""
    clients = axis.place(state.clients, CLIENTS)
    return axis.place(state._replace(clients=None))._replace(clients=clients)


def one_round(algorithm: Algorithm, state: State, data: FederatedData, hyper: Hyper) -> tuple[State, RoundReport]:
    """Sample, train, agree: algorithm 1 of the paper."""
    round_key = jax.random.fold_in(jax.random.fold_in(state.key, 1), state.round)
    sample_key, train_key = jax.random.split(round_key)
    drop_key = jax.random.fold_in(round_key, 2)  # 0 and 1 may be the two above
    subsets = algorithm.method.sample(sample_key, data)  # [M, K]
    faults = algorithm.faults
    attackers = faults.attackers(data, hyper)  # [N]

    def train(clients: ClientState | None, ids: Array, subset: Array) -> tuple[Trained, ClientState | None]:
        answers = faults.answers(drop_key, ids, subset, hyper)
        work = data.sizes.at[jnp.where(answers, ids, NOBODY)].get(mode="fill", fill_value=0)
        attacks = attackers.at[ids].get(mode="fill", fill_value=False)
        shared = (train_key, state.model, state.initial_model, data, hyper, Bulletin(state.round, state.memory))
        slot = partial(train_slot, algorithm.local, faults)
        return algorithm.axis.run(slot, work, ids, (subset, answers, attacks), clients, shared)

    trained, clients = algorithm.repeat(train, state.clients, subsets, data.clients)
    members = Members(data.sizes[subsets], data.labeled[subsets], trained.healthy)
    consensus = jax.vmap(algorithm.method.aggregate, in_axes=(0, 0, None))(trained.model, members, hyper)
    sent_down = count_distinct(subsets, data.clients)
    answering = jnp.where(trained.answered, subsets, NOBODY)
    sent_up = count_distinct(answering, data.clients) if algorithm.repeat is share else jnp.sum(trained.answered)
    model = global_mean(consensus, state.model)
    state = state._replace(
        round=state.round + 1,
        model=model,
        memory=algorithm.method.remember(state.memory, trained.news, members),
        clients=clients,
        models_down=state.models_down + sent_down,
        models_up=state.models_up + sent_up.astype(jnp.int32),
    )
    return place_state(algorithm.axis, state), RoundReport(
        subsets=subsets,
        weights=consensus.weights,
        distances=consensus.distances,
        labeled_loss=_mean_where(trained.losses.labeled, trained.healthy & members.labeled),
        consistency_loss=_mean_where(trained.losses.consistency, trained.healthy & data.unlabeled[subsets]),
        broken=trained.answered & ~trained.healthy,
        dropped=~trained.answered,
        attackers=attackers[subsets],
        finite=_all_finite(model),
    )


def train_slot(
    local: LocalTraining,
    faults: Faults,
    client_id: Array,
    subset: Array,
    answers: Array,
    attacks: Array,
    before: ClientState | None,
    key: Array,
    model: Model,
    initial_model: Model,
    data: FederatedData,
    hyper: Hyper,
    bulletin: Bulletin,
) -> tuple[Trained, ClientState | None]:
    """Trains one client for one subset, with randomness from (seed, round, subset, client) and nothing else.

    A client whose model is not finite sends the global model and keeps its earlier state: zero times NaN is NaN. So
    does one that does not answer; it trains nothing. A client that keeps no state begins anew, its teacher as the
    global model.
    """
    slot_key = jax.random.fold_in(jax.random.fold_in(key, subset), client_id)
    started = before or init_client(model, hyper, with_teacher=local.with_teacher)
    if local.with_teacher:
        start = model if before is None else _choose(hyper.teacher_from_selection > 0, model, initial_model)
        started = started._replace(teacher=_choose(started.step == 0, start, started.teacher))
    working = jnp.where(answers, client_id, NOBODY)
    after_model, after, told = train_client(local, slot_key, model, started, working, data, hyper, bulletin)
    sent = faults.sent(jax.random.fold_in(slot_key, local.epochs), attacks, after_model, model)
    healthy = answers & _all_finite(sent)
    trained = Trained(_choose(healthy, sent, model), *told, healthy, answers)
    return trained, before and _choose(healthy, after, before)


def _all_finite(model: Model) -> Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(model)]))


def count_distinct(ids: Array, clients: int) -> Array:
    """How many different clients are named: each receives the global model once a round."""
    return jnp.sum(jnp.zeros(clients, jnp.int32).at[ids].set(1), dtype=jnp.int32)


def _choose(condition: Array, yes: Tree, no: Tree) -> Tree:
    return jax.tree.map(lambda y, n: jnp.where(condition, y, n), yes, no)


def _mean_where(values: Array, mask: Array) -> Array:
    return jnp.sum(jnp.where(mask, values, 0)) / jnp.sum(mask)


def round_of_cells(algorithm: Algorithm, state: State, data: FederatedData, hyper: Hyper) -> tuple[State, RoundReport]:
    """One round of G experiments: state, hyper and who holds which sample have a leading axis of G cells."""
    one = jax.vmap(partial(one_round, algorithm), in_axes=(0, OF_A_CELL, 0), spmd_axis_name=algorithm.axis.cell_axis)
    return one(state, data, hyper)


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
    algorithm: Algorithm, state: State, data: FederatedData, hyper: Hyper, rounds: Array, *, capacity: int
) -> tuple[State, RoundReport]:
    """As `run_rounds`, for the G cells of a grid at once; reports have the leading axes [capacity, G]."""
    return _repeat_round(partial(round_of_cells, algorithm), state, data, hyper, rounds, capacity)


_PROGRAMS: dict[Hashable, Any] = {}


def compile_cells(
    algorithm: Algorithm, state: State, data: FederatedData, hyper: Hyper, *, capacity: int
) -> tuple[Any, bool]:
    """`run_cells` compiled for arguments like these, and whether it had to be compiled now.

    The program takes (state, data, hyper, rounds). Experiments of one process that are alike share it.
    """
    leaves, structure = jax.tree.flatten((state, data, hyper))
    key = (algorithm, capacity, structure, *((leaf.shape, leaf.dtype, leaf.sharding) for leaf in leaves))
    new = key not in _PROGRAMS
    if new:
        lowered = run_cells.lower(algorithm, state, data, hyper, np.int32(0), capacity=capacity)
        _PROGRAMS[key] = algorithm.axis.compile(lowered)
    return _PROGRAMS[key], new


def _repeat_round(
    step: Callable[..., tuple[State, RoundReport]],
    state: State,
    data: FederatedData,
    hyper: Hyper,
    rounds: Array,
    capacity: int,
) -> tuple[State, RoundReport]:
    report = jax.eval_shape(step, state, data, hyper)[1]
    reports = jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), report)

    def body(i: Array, carry: tuple[State, RoundReport]) -> tuple[State, RoundReport]:
        state, reports = carry
        state, report = step(state, data, hyper)
        return state, jax.tree.map(lambda all_, new: all_.at[i].set(new), reports, report)

    return jax.lax.fori_loop(0, jnp.minimum(rounds, capacity), body, (state, reports))


def scan_rounds(
    algorithm: Algorithm, state: State, data: FederatedData, hyper: Hyper, *, rounds: int
) -> tuple[State, RoundReport]:
    """`rounds` rounds by `lax.scan`, for use inside a program of one's own."""

    def body(state: State, _: None) -> tuple[State, RoundReport]:
        return one_round(algorithm, state, data, hyper)

    return jax.lax.scan(body, state, length=rounds)
