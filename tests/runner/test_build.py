"""From settings to a program and its arguments."""

import dataclasses

import chex
import jax
import numpy as np
import pytest

from rscfed_jax.config import Config, SettingError
from rscfed_jax.core.method import Method
from rscfed_jax.core.program import run_cells
from rscfed_jax.core.sampling import AllClients
from rscfed_jax.core.types import SHARED_BY_CELLS
from rscfed_jax.data.federation import build_federation
from rscfed_jax.data.table import SHARED
from rscfed_jax.methods.registry import METHODS
from rscfed_jax.runner.build import Objects, build_cells, build_simulation, cell_of, to_device
from rscfed_jax.runner.compiled import compiled
from tests.helpers import SMALL

CONFIG = Config(**SMALL)
# Other numbers, other partitions, other labeled clients; the third only fills the devices.
CELLS = [
    CONFIG.replace(beta=20.0, lambda_u=1.0),
    CONFIG.replace(gamma=100.0, min_client_size=4, lambda_u=0.5, labeled_choice="random", flip=True),
    CONFIG.replace(beta=0.0, seed=2**31 - 1),
]


@pytest.mark.parametrize(
    "settings",
    [
        {"devices": 4, "chunk": 1},
        pytest.param({"devices": 1, "chunk": 3}, marks=pytest.mark.slow),
        pytest.param({"devices": 2, "client_state": "fresh", "repeat": "sequential"}, marks=pytest.mark.slow),
        pytest.param({"devices": 2, "client_state": "fresh", "repeat": "share"}, marks=pytest.mark.slow),
    ],
    ids=["two devices for cells, two for their clients", "one device", "sequential", "share"],
)
def test_a_cell_gives_what_its_experiment_gives_alone(settings):
    configs = [config.replace(**settings) for config in CELLS]
    # One data set for all, as a grid has it.
    dataset = build_federation(CONFIG).dataset
    federations = [build_federation(config, dataset=dataset) for config in configs]
    together = build_cells(configs, federations, grid_devices=min(settings["devices"], 2))
    state, reports = run_cells(together.algorithm, together.state, together.data, together.hyper, 2, capacity=2)
    for number, (config, federation) in enumerate(zip(configs, federations, strict=True)):
        alone = build_cells([config.replace(devices=1, chunk=1)], [federation])
        program, _ = compiled(alone.algorithm, alone, capacity=4)  # the one that most tests run
        after, report = program(alone.state, alone.data, alone.hyper, np.int32(2), None)
        after = cell_of(alone._replace(state=after), 0).state
        report = jax.tree.map(lambda leaf: leaf[:2, 0], report)
        own = cell_of(together._replace(state=state), number).state
        chex.assert_trees_all_close(own.model, after.model, atol=1e-4)
        assert (own.clients is None) == (settings.get("client_state") == "fresh")
        clients = jax.tree.map(lambda leaf: leaf[: CONFIG.clients], own.clients)
        chex.assert_trees_all_close(clients, after.clients, atol=5e-4)
        own_report = jax.tree.map(lambda leaf, number=number: leaf[:, number], reports)
        np.testing.assert_array_equal(own_report.subsets, report.subsets)
        chex.assert_trees_all_close(own_report, report, atol=5e-4)


def test_a_cell_starts_as_its_experiment_alone():
    federations = [build_federation(config) for config in CELLS]
    together = build_cells(CELLS, federations)
    for number, (config, federation) in enumerate(zip(CELLS, federations, strict=True)):
        alone, own = build_simulation(config, federation), cell_of(together, number)
        assert own.state.key == jax.random.key(config.seed)
        chex.assert_trees_all_equal(own.state.model, alone.state.model)
        chex.assert_trees_all_equal(own.hyper, alone.hyper)
        assert own.algorithm == alone.algorithm


def test_the_data_of_a_simulation_are_those_of_the_federation():
    federation = build_federation(CONFIG)
    simulation = build_simulation(CONFIG, federation)
    data, test = to_device(federation, image_size=16, resize_to=CONFIG.resize)
    chex.assert_trees_all_equal((simulation.data, simulation.test), (data, test))


def test_cells_that_fill_the_devices_repeat_the_last_one():
    configs = [CONFIG.replace(beta=beta, devices=4) for beta in (1.0, 2.0, 3.0)]
    together = build_cells(configs, [build_federation(CONFIG)] * 3, grid_devices=4)
    assert together.hyper.beta.tolist() == [1.0, 2.0, 3.0, 3.0]


def test_a_federation_without_unlabeled_samples_has_no_teacher():
    for settings, teacher in [({"method": "fedavg"}, False), ({"labeled_clients": 10}, False), ({}, True)]:
        config = CONFIG.replace(**settings)
        simulation = build_simulation(config, build_federation(config))
        assert (simulation.state.clients.teacher is not None) == teacher


@pytest.mark.parametrize("method", METHODS)
def test_methods_of_one_seed_share_partition_and_initial_model(method):
    one, other = (build_simulation(c, build_federation(c)) for c in (CONFIG.replace(method=method), CONFIG))
    chex.assert_trees_all_equal(one.state.model, other.state.model)
    chex.assert_trees_all_equal(one.data, other.data)


def test_a_warm_up_is_on_the_labeled_clients_alone_and_nothing_goes_wrong_in_it():
    config = CONFIG.replace(warmup_rounds=2, drop_rate=0.5, byzantine=2, labeled_clients=3)
    simulation = build_simulation(config, build_federation(config))
    subsets = simulation.warmup.method.sample(jax.random.key(0), simulation.data)
    np.testing.assert_array_equal(subsets[0], np.flatnonzero(simulation.data.labeled))
    assert subsets.shape == (1, 3)
    assert simulation.warmup.method.teacher == "none"
    assert (simulation.algorithm.faults.drops, simulation.warmup.faults.drops) == (True, False)
    assert simulation.warmup.faults.attack is None


def test_a_simulation_starts_from_a_model_that_is_there(tmp_path):
    config = CONFIG.replace(init_from=str(tmp_path / "nowhere"))
    with pytest.raises(SettingError, match=r"--init-from .*nowhere: is not a run directory"):
        build_simulation(config, build_federation(config))


def test_labels_of_any_whole_type_are_hidden():
    dataset = build_federation(CONFIG).dataset
    small = dataset._replace(train_labels=dataset.train_labels.astype(np.uint8))
    hidden = build_simulation(CONFIG, build_federation(CONFIG, dataset=small)).data.labels
    assert set(np.unique(hidden)) == {-1, 0, 1, 2}


def test_a_federation_has_as_many_clients_as_the_config():
    federation = build_federation(CONFIG.replace(clients=5))
    with pytest.raises(SettingError, match="--clients 10: must be 5, as in the federation"):
        build_simulation(CONFIG, federation)


def test_a_method_made_of_the_configs_keeps_its_numbers_and_defaults():
    config = Config(method="fedirm", fedirm_factor=3.0)
    mine = dataclasses.replace(METHODS["fedirm"](config), name="mine")
    named = Objects(mine).named_in(config)
    assert (named.method, named.method_hash, named.ema, named.warmup_rounds) == ("mine", "none", 0.99, 21)
    assert named.numbers == config.numbers
    assert Objects(mine).named_in(named) == named
    assert Objects(METHODS["fedirm"](config)).named_in(config) == config


def test_the_table_of_the_host_and_that_of_the_device_share_the_same_parts():
    assert SHARED == SHARED_BY_CELLS  # written in two rooms that do not know each other


def test_a_method_given_as_an_object_is_not_checked_as_if_it_drew_subsets():
    config = Config(method="fed_consist", aggregator="krum", assumed_attackers=2)
    named = Objects(method=Method(name="mine", sample=AllClients())).named_in(config)
    assert (named.method, named.samples, named.aggregator) == ("mine", None, "krum")
