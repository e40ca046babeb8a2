"""One round of a federation as a pure function: sample, train, agree, serve."""

import contextlib
import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from rscfed_jax.config import Hyper
from rscfed_jax.core.aggregation import Consensus, Members, global_mean
from rscfed_jax.core.algorithm import Algorithm
from rscfed_jax.core.client import train_slot
from rscfed_jax.core.client_axis import CLIENTS, ClientAxis
from rscfed_jax.core.faults import NO_FAULTS
from rscfed_jax.core.method import Labeled, Server
from rscfed_jax.core.optimizer import init_client, server_step
from rscfed_jax.core.repeat import share
from rscfed_jax.core.sampling import LabeledClients
from rscfed_jax.core.schedule import NOBODY, take
from rscfed_jax.core.trees import all_finite, choose
from rscfed_jax.core.types import (
    Array,
    Broadcast,
    ClientState,
    FederatedData,
    Model,
    RoundReport,
    Slot,
    State,
    Trained,
)

# Traced once for a program, wherever it is mapped, looped over or only asked for its shapes.
_train_slot = jax.jit(train_slot, static_argnums=0, inline=True)
FINISH = 2**31 - 1  # what the round's key is folded with for its second phase


@partial(jax.jit, static_argnames=("algorithm", "clients"))
def init_state(algorithm: Algorithm, key: Array, clients: int, hyper: Hyper) -> State:
    """A federation before its first round: the initial model, and clients that were never selected."""
    network = algorithm.network
    images = jnp.zeros((3, algorithm.image_size, algorithm.image_size, 1), network.dtype)
    model = dict(network.init(jax.random.fold_in(key, 0), images, train=False))
    client = init_client(model, hyper, with_teacher=algorithm.with_teacher) if algorithm.keeps_clients else None
    rows = algorithm.axis.rows(clients)
    stacked = jax.tree.map(lambda leaf: jnp.zeros((rows, *leaf.shape), leaf.dtype), client)
    return place_state(
        algorithm.axis,
        State(
            round=jnp.int32(0),
            key=key,
            model=model,
            initial_model=jax.tree.map(jnp.copy, model),
            memory=initial_memory(algorithm, model),
            optimizer=None if algorithm.server is None else algorithm.server(hyper).init(model["params"]),
            clients=stacked,
            models_down=jnp.int32(0),
            models_up=jnp.int32(0),
        ),
    )


def initial_memory(algorithm: Algorithm, model: Model) -> Any:
    """What the method's server knows before the first round, which starts from `model`."""
    memory = algorithm.method.memory(algorithm.network, jax.tree.map(jnp.copy, model))
    # A type that is weak would change in the first round, and the second would be compiled anew.
    return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, jnp.result_type(leaf)), memory)


def place_state(axis: ClientAxis, state: State) -> State:
    """A state where the rounds want it: clients spread over the devices, the rest on every one."""
    clients = axis.place(state.clients, CLIENTS)
    return axis.place(state._replace(clients=None))._replace(clients=clients)


def one_round(
    algorithm: Algorithm, state: State, data: FederatedData, hyper: Hyper, drawn: Array | None = None
) -> tuple[State, RoundReport]:
    """Sample, train, agree: algorithm 1 of the paper.

    `drawn` [M, K] are rows of a working set, in which the host has put the clients that it drew for this round; without
    it the round draws its subsets itself.
    """
    method = algorithm.method
    assert method.sample is not None  # the registry has filled it in
    sample_key, train_key, drop_key = round_keys(state.key, state.round)
    subsets = method.sample(sample_key, data._replace(truth=data.labels)) if drawn is None else drawn  # [M, K] rows
    broadcast = Broadcast(train_key, state.model, state.initial_model, state.round, state.memory)
    trained, clients = train_subsets(algorithm, drop_key, subsets, state.clients, broadcast, data, hyper)
    members = Members(data.sizes[subsets], data.labeled[subsets], trained.healthy, trained.news)
    consensus = jax.vmap(method.aggregate, in_axes=(0, 0, None))(trained.model, members, hyper)
    model, memory, optimizer = global_mean(consensus, state.model), state.memory, state.optimizer
    if algorithm.server is not None:
        stepped = server_step(algorithm.server, optimizer, state.model, model, hyper)
        # Momentum alone must not move a model that nobody had a say in.
        model, optimizer = choose(jnp.any(consensus.weights > 0), stepped, (model, optimizer))
    if method.serve is not None:
        model, memory = method.serve(Server(state.round, state.model, model, memory), members, hyper)
    down, up = models_sent(algorithm, subsets, trained, data)
    labeled_loss = _mean_where(trained.losses.labeled, trained.healthy & members.labeled)
    if method.finish is not None:
        sent = broadcast._replace(model=model, memory=memory)
        model, clients, count, finish_loss = second_phase(algorithm, clients, sent, data, hyper)
        down, up = down + count, up + count
        labeled_loss = jnp.where(jnp.any(trained.healthy & members.labeled), labeled_loss, finish_loss)
    state = state._replace(
        round=state.round + 1,
        model=model,
        memory=memory,
        optimizer=optimizer,
        clients=clients,
        models_down=state.models_down + down,
        models_up=state.models_up + up,
    )
    return place_state(algorithm.axis, state), RoundReport(
        subsets=clients_in(subsets, data),
        weights=consensus.weights,
        distances=consensus.distances,
        labeled_loss=labeled_loss,
        consistency_loss=_mean_where(trained.losses.consistency, trained.healthy & data.unlabeled[subsets]),
        broken=trained.answered & ~trained.healthy,
        dropped=~trained.answered,
        attackers=algorithm.faults.attackers(data, hyper)[subsets],
        finite=all_finite(model),
        judged=None if trained.judged is None else _sum_where(trained.judged, trained.healthy),
    )


def round_keys(key: Array, number: Array) -> tuple[Array, Array, Array]:
    """The keys of a round for its subsets, its training and its faults, from that of the experiment."""
    round_key = jax.random.fold_in(jax.random.fold_in(key, 1), number)
    sample_key, train_key = jax.random.split(round_key)
    return sample_key, train_key, jax.random.fold_in(round_key, 2)  # 0 and 1 may be the two before


def train_subsets(
    algorithm: Algorithm,
    drop_key: Array,
    subsets: Array,
    clients: ClientState | None,
    broadcast: Broadcast,
    data: FederatedData,
    hyper: Hyper,
) -> tuple[Trained, ClientState | None]:
    """What the members of subsets [M, K] of rows trained, stacked over [M, K], and the clients' new states."""
    number, size = subsets.shape
    passes = algorithm.repeat(subsets, data.clients)
    attackers = algorithm.faults.attackers(data, hyper)  # [N]

    def one_pass(clients: ClientState | None, slots: tuple[Array, Array]) -> tuple[ClientState | None, Trained]:
        rows, subset = slots
        ids = clients_in(rows, data)
        answers = algorithm.faults.answers(drop_key, ids, subset, hyper)
        working = jnp.where(answers, rows, NOBODY)
        work = data.sizes.at[working].get(mode="fill", fill_value=0)
        if algorithm.method.epochs is not None:
            labeled = data.labeled.at[working].get(mode="fill", fill_value=False)
            work *= jnp.asarray(algorithm.method.epochs(labeled, hyper), work.dtype)
        attacks = attackers.at[rows].get(mode="fill", fill_value=False)
        slot = Slot(ids, rows, subset, answers, attacks)
        trained, clients = algorithm.axis.run(
            partial(_train_slot, algorithm), work, slot, clients, (broadcast, data, hyper)
        )
        return clients, trained

    # Here and not at a client: `vmap` over clients adds products of its own.
    with contextlib.nullcontext() if algorithm.precision == "default" else jax.default_matmul_precision("highest"):
        if len(passes.rows) == 1:
            clients, trained = one_pass(clients, (passes.rows[0], passes.subsets[0]))
        else:
            clients, trained = jax.lax.scan(one_pass, clients, (passes.rows, passes.subsets))
            trained = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), trained)
    if passes.places is not None:
        return jax.tree.map(lambda leaf: leaf[passes.places], trained), clients
    return jax.tree.map(lambda leaf: leaf.reshape(number, size, *leaf.shape[1:]), trained), clients


def second_phase(
    algorithm: Algorithm, clients: ClientState | None, broadcast: Broadcast, data: FederatedData, hyper: Hyper
) -> tuple[Model, ClientState | None, Array, Array]:
    """The mean of all labeled clients after they trained on from the new global model, models sent, and their loss."""
    finish = algorithm.method.finish
    assert finish is not None
    method = dataclasses.replace(
        algorithm.method,
        objective=finish.objective or algorithm.method.objective,
        teacher="none",
        batches=Labeled(),
        prepare=None,
        partners=False,
        pseudo_labels=False,
        tally=None,
        between=None,
        epochs=None,
    )
    alone = dataclasses.replace(algorithm, method=method, epochs=finish.epochs, faults=NO_FAULTS)
    subsets = LabeledClients()(broadcast.key, data)
    broadcast = broadcast._replace(key=jax.random.fold_in(broadcast.key, FINISH))
    trained, clients = train_subsets(alone, broadcast.key, subsets, clients, broadcast, data, hyper)
    labels = jnp.sum(data.class_counts, axis=1)
    members = Members(labels[subsets], data.labeled[subsets], trained.healthy)
    consensus: Consensus = jax.vmap(finish.aggregate, in_axes=(0, 0, None))(trained.model, members, hyper)
    travels = subsets.size if algorithm.server_id is None else 0  # a server that holds the labels sends itself nothing
    loss = _mean_where(trained.losses.labeled, trained.healthy)
    return global_mean(consensus, broadcast.model), clients, jnp.int32(travels), loss


def models_sent(algorithm: Algorithm, subsets: Array, trained: Trained, data: FederatedData) -> tuple[Array, Array]:
    """How many models go down to clients and up to the server, which sends itself none."""
    answered = trained.answered
    if algorithm.server_id is not None:
        is_client = clients_in(subsets, data) != algorithm.server_id
        subsets, answered = jnp.where(is_client, subsets, NOBODY), answered & is_client
    down = count_distinct(subsets, data.clients)
    if algorithm.repeat is share:
        return down, count_distinct(jnp.where(answered, subsets, NOBODY), data.clients)
    return down, jnp.sum(answered, dtype=jnp.int32)


def count_distinct(rows: Array, number: int) -> Array:
    """How many different ones of a number of rows are named: each client receives the global model once a round."""
    return jnp.sum(jnp.zeros(number, jnp.int32).at[rows].set(1), dtype=jnp.int32)


def clients_in(rows: Array, data: FederatedData) -> Array:
    """The ids of the clients in these rows."""
    return rows if data.ids is None else take(data.ids, rows)


def _sum_where(values: Array, mask: Array) -> Array:
    """The sum of values [M, K, classes, 3] over the members that `mask` [M, K] names."""
    return jnp.sum(jnp.where(mask[..., None, None], values, 0), axis=(0, 1))


def _mean_where(values: Array, mask: Array) -> Array:
    return jnp.sum(jnp.where(mask, values, 0)) / jnp.sum(mask)
