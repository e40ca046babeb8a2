"""Cells of a grid: one program for many experiments gives what each would give alone."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from rscfed_jax.runner.sweep import NUMBERS, Job, federations, groups_of, program_of
from rscfed_jax.core.client_axis import CLIENTS, GRID, ClientAxis
from rscfed_jax.config import Config, Hyper
from rscfed_jax.data.federation import build_federation
from rscfed_jax.data.table import cells_to_host, to_device
from rscfed_jax.core.metrics import evaluate, evaluate_cells
from rscfed_jax.core.repeat import retrain, sequential, share
from rscfed_jax.core.round import init_cells, init_state, run_cells, run_rounds
from tests.conftest import Tiny, assert_trees_close, assert_trees_equal, ragged_federation

SEEDS = (3, 4, 3, 9)
FEDERATIONS = (
    ragged_federation(),
    ragged_federation(sizes=(20, 6, 30, 2, 5)),  # other sizes: the rows and positions of the others are padded
    ragged_federation(labeled=(True, False, False, True, False)),
    ragged_federation(),
)
BETAS = (0.0, 20.0, 300.0, 20.0)


def mesh_of(grid, clients):
    return Mesh(np.array(jax.devices()[: grid * clients]).reshape(grid, clients), (GRID, CLIENTS))


def both_ways(axis, *, repeat=retrain, keeps_clients=True):
    """Two rounds of four cells as one program, and of each alone: [(state, report, metrics), ...] and the same."""
    tiny = Tiny()
    algorithm = dataclasses.replace(tiny.algorithm(repeat=repeat, axis=axis), keeps_clients=keeps_clients)
    numbers = [jax.tree.map(jnp.float32, Hyper.of(Config(lambda_u=1.0, beta=beta))) for beta in BETAS]
    data, test = jax.tree.map(jnp.asarray, cells_to_host(FEDERATIONS, image_size=16, resize_to=20))
    hyper = jax.tree.map(lambda *leaves: jnp.stack(leaves), *numbers)
    state = init_cells(algorithm, jnp.array(SEEDS), 5, hyper)
    state, report = run_cells(algorithm, state, data, hyper, 2, capacity=2)
    metrics = evaluate_cells(tiny.local.network, state.model, test, axis=axis)
    together, alone = [], []
    for number, (federation, own, seed) in enumerate(zip(FEDERATIONS, numbers, SEEDS, strict=True)):
        cell = jax.tree.map(lambda leaf, number=number: leaf[number], (state, metrics))
        together.append((cell[0], jax.tree.map(lambda leaf, n=number: leaf[:, n], report), cell[1]))
        single = dataclasses.replace(algorithm, axis=ClientAxis())
        own_data, own_test = to_device(federation, image_size=16)
        start = init_state(single, jax.random.key(seed), 5, own)
        after, own_report = run_rounds(single, start, own_data, own, 2, capacity=2)
        alone.append((after, own_report, evaluate(tiny.local.network, after.model, own_test)))
    return together, alone


AXES = {
    "one after the other": (1, None),
    "all at once, two devices for clients": (0, (1, 2)),
    "two devices for cells, two for the clients of each": (1, (2, 2)),
}


@pytest.mark.parametrize("name", AXES)
def test_a_cell_gives_what_its_experiment_gives_alone(name):
    chunk, shape = AXES[name]
    axis = ClientAxis(chunk, None if shape is None else mesh_of(*shape))
    together, alone = both_ways(axis)
    for (state, report, metrics), (own_state, own_report, own_metrics) in zip(together, alone, strict=True):
        assert_trees_close(state.model, own_state.model, atol=1e-4)
        clients = jax.tree.map(lambda leaf: leaf[:5], state.clients)
        assert_trees_close(clients, own_state.clients, atol=5e-4)
        np.testing.assert_array_equal(report.subsets, own_report.subsets)
        assert_trees_close(report, own_report, atol=5e-4)
        assert_trees_close(metrics, own_metrics, atol=1e-5)


@pytest.mark.parametrize("repeat", [sequential, pytest.param(share, marks=pytest.mark.slow)])
def test_cells_whose_clients_keep_no_state(repeat):
    together, alone = both_ways(ClientAxis(), repeat=repeat, keeps_clients=False)
    for (state, _, _), (own_state, _, _) in zip(together, alone, strict=True):
        assert state.clients is None
        assert_trees_close(state.model, own_state.model, atol=1e-4)


def test_a_client_that_keeps_no_state_starts_its_teacher_from_the_global_model():
    tiny = Tiny(lambda_u=0.0)  # a student that does not move, but for weight decay
    algorithm = dataclasses.replace(tiny.algorithm(), keeps_clients=False)
    state = tiny.state(algorithm)
    assert state.clients is None
    after, report = run_rounds(algorithm, state, tiny.data, tiny.hyper, 3, capacity=3)
    assert after.clients is None
    assert np.isfinite(report.labeled_loss).any()


def test_the_key_of_a_cell_is_that_of_its_seed():
    tiny = Tiny()
    hyper = jax.tree.map(lambda number: jnp.stack([number] * 2), tiny.hyper)
    state = init_cells(tiny.algorithm(), jnp.array([5, 2**31 - 1]), 5, hyper)
    assert_trees_equal(jax.random.key_data(state.key[1]), jax.random.key_data(jax.random.key(2**31 - 1)))
    assert_trees_equal(
        jax.tree.map(lambda leaf: leaf[0], state.model),
        init_state(tiny.algorithm(), jax.random.key(5), 5, tiny.hyper).model,
    )


TINY = {"dataset": "synthetic:train=120,test=40,classes=3,size=16", "image_size": 16, "clients": 4, "subset_size": 2}


def test_numbers_and_partitions_share_a_program_and_shapes_do_not():
    def program(**changes):
        config = Config(**TINY | {"min_client_size": 5} | changes)
        return program_of(config, build_federation(config))

    same = {
        "beta": 3.0,
        "tau": 1.0,
        "flip": True,
        "gamma": 5.0,
        "labeled_share": "off",
        "teacher_init": "first-selected",
    }
    for name, value in same.items():
        assert program(**{name: value}) == program()
    other = {"subsets": 2, "distance": "sum", "clients": 5, "labeled_clients": 2, "warmup_rounds": 1, "drop_rate": 0.1}
    other |= {"rounds": 3, "batch_size": 32, "repeat": "share", "client_state": "fresh", "eval_every": 2, "seed": 1}
    for name, value in other.items():
        assert program(**{name: value}) != program()
    assert program(preset="published") != program()
    assert program(drop_rate=0.1) == program(drop_rate=0.2)


def test_seeds_of_a_data_set_that_does_not_depend_on_them_run_together():
    jobs = [Job(f"seed {seed}", Config(seed=seed, train_fraction=0.01), None) for seed in range(3)]
    [group] = groups_of(jobs)
    assert group.jobs == jobs
    assert group.federations[0].dataset is group.federations[2].dataset
    assert [len(part.jobs) for part in groups_of(jobs, most=2)] == [2, 1]


@pytest.mark.parametrize(
    ("saved", "groups"),
    [
        ({"a": [], "b": [], "c": []}, ["abc"]),
        ({"a": [20, 30, 40], "b": [20, 30], "c": []}, ["ab", "c"]),  # killed while it saved; a new one begins apart
        ({"a": [20, 30, 40], "b": [10], "c": [10]}, ["a", "bc"]),  # nothing in common
        ({"a": [10, 90, 100], "b": [10], "c": [90, 100]}, ["ac", "b"]),  # in common, but long ago
        ({"a": None, "b": [10], "c": [10]}, ["bc"]),  # finished
    ],
)
def test_cells_go_on_together_where_that_costs_no_more_than_a_kill(saved, groups):
    jobs = [Job(name, Config(train_fraction=0.01), None) for name in "abc"]
    found = groups_of(jobs, saved=saved)
    assert ["".join(job.name for job in group.jobs) for group in found] == groups


def test_cells_of_other_image_sizes_do_not_share_pictures():
    jobs = [Job(str(size), Config(train_fraction=0.01, image_size=size), None) for size in (16, 32)]
    first, second = federations(jobs)
    assert first.dataset is not second.dataset


def test_every_number_of_the_program_is_one_that_cells_may_differ_in():
    assert {"beta", "lr_labeled", "seed", "gamma"} <= NUMBERS
    assert not NUMBERS & {"rounds", "clients", "method", "warmup_rounds", "batch_size"}
