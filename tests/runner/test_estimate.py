"""What an experiment would take."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from rscfed_jax.config import Config
from rscfed_jax.core.method import Finish, Method, Separate
from rscfed_jax.core.sampling import AllClients
from rscfed_jax.data.federation import build_federation
from rscfed_jax.runner import estimate as estimates
from rscfed_jax.runner.build import NO_OBJECTS, Objects, build_simulation, tree_bytes
from rscfed_jax.runner.estimate import (
    MEASURED_FLOPS,
    SECONDS_PER_STEP,
    as_lines,
    largest_chunk,
    program_bytes,
    run_seconds,
    slots_of,
    steps_per_round,
)
from rscfed_jax.runner.step_cost import Parts, StepCost, step_flops
from tests.helpers import SMALL, FixedSubsets, TinyNetwork

CONFIG = Config(**SMALL | {"dataset": "fashion", "gamma": 0.8, "train_fraction": 0.05})
FEDERATION = build_federation(CONFIG)


def estimate(*, clients=10, flops=1.0, objects=NO_OBJECTS, **changes):
    config = CONFIG.replace(**changes)
    return estimates.estimate(config, FEDERATION, Parts.of(config, FEDERATION, objects), flops, clients=clients)


def test_bytes_are_those_of_the_real_state():
    simulation = build_simulation(CONFIG, FEDERATION)
    taken = estimate()
    assert taken.state_bytes == tree_bytes(simulation.state.clients)
    assert taken.data_bytes == simulation.data.images.nbytes + simulation.test.images.nbytes
    assert taken.bytes_up == 15 * tree_bytes(simulation.state.model)
    assert taken.bytes_down == 10 * tree_bytes(simulation.state.model)
    # Fifteen clients one at a time in one wave: each device fetches a state, and stores it with the model.
    model, client = tree_bytes(simulation.state.model), taken.state_bytes // 10
    assert taken.exchange_bytes == 15 * (2 * client + model)
    assert estimate(devices=2).exchange_bytes == 8 * 2 * (2 * client + model)
    assert estimate(client_state="fresh", clients=10_000).state_bytes == 0
    both = program_bytes([CONFIG, CONFIG], [FEDERATION, FEDERATION])
    assert both - program_bytes([CONFIG], [FEDERATION]) == taken.state_bytes + taken.models_bytes


def test_steps_follow_the_sampler_of_the_method():
    steps = -(-FEDERATION.sizes // 16)
    assert estimate().steps_per_round == pytest.approx(15 * steps.mean())
    assert estimate(method="fed_consist").steps_per_round == steps.sum()
    assert estimate(method="fedavg").steps_per_round == steps[FEDERATION.labeled].sum()
    assert estimate(method="fedavg").models_per_round == 1
    assert (estimate().models_per_round, estimate(repeat="share").models_per_round) == (15, 10)
    assert estimate(repeat="share").bytes_up == estimate(repeat="share").bytes_down
    assert estimate(flops=2.0).flops_per_round == 2 * estimate().steps_per_round
    assert estimate().hours(100, 1e3) == pytest.approx(100 * estimate().flops_per_round / 1e3 / 3600)


def thrice_for_labeled(labeled, hyper):
    return np.where(labeled, 3, 1)


def test_a_method_of_ones_own_is_asked_for_its_epochs_its_sampler_and_its_second_phase():
    steps, labeled = -(-FEDERATION.sizes // 16), FEDERATION.labeled
    own = Objects(Method(name="mine", sample=AllClients(), epochs=thrice_for_labeled))
    assert estimate(objects=own).steps_per_round == (steps * np.where(labeled, 3, 1)).sum()
    finishing = Method(name="mine", sample=AllClients(), finish=Finish(epochs=2))
    labels = FEDERATION.label_counts.sum(axis=1)
    assert steps_per_round(CONFIG, finishing, FEDERATION.sizes, labels) == steps.sum() + 2 * steps[labeled].sum()
    apart = dataclasses.replace(finishing, finish=None, batches=Separate(labeled=4, unlabeled=4))
    expected = np.where(labeled, -(-labels // 4), -(-FEDERATION.sizes // 4)).sum()
    assert steps_per_round(CONFIG, apart, FEDERATION.sizes, labels) == expected
    # A sampler that does not say is taken to draw every client once.
    np.testing.assert_array_equal(slots_of(Method(name="mine", sample=FixedSubsets(((0,),))), labeled), np.ones(10))


def test_the_time_of_a_run_is_that_of_its_steps_with_the_warm_up():
    steps = -(-FEDERATION.sizes // 16)
    config = CONFIG.replace(method="fed_consist", rounds=5, warmup_rounds=3)
    expected = 5 * steps.sum() + 3 * steps[FEDERATION.labeled].sum()
    flops = step_flops(config, 10, Parts.of(config, FEDERATION, NO_OBJECTS))
    seconds = SECONDS_PER_STEP * flops / MEASURED_FLOPS
    assert run_seconds(config, FEDERATION) == pytest.approx(expected * seconds)


def test_the_measured_step_has_the_arithmetic_that_others_are_compared_with():
    config = Config(train_fraction=0.05)
    parts = Parts.of(config, build_federation(config), NO_OBJECTS)
    assert step_flops(config, 10, parts) == pytest.approx(MEASURED_FLOPS, rel=0.02)
    larger = config.replace(batch_size=128)
    assert step_flops(larger, 10, parts) == pytest.approx(2 * MEASURED_FLOPS, rel=0.02)


def test_the_largest_chunk_fills_the_memory_that_is_left():
    taken = estimate()
    step = StepCost(1.0, bytes_first=1000, bytes_more=100)
    assert largest_chunk(step, taken, taken.resident_bytes + 999) == 0
    assert largest_chunk(step, taken, taken.resident_bytes + 1000) == 1
    assert largest_chunk(step, taken, taken.resident_bytes + 1000 + 2 * (100 + taken.more_bytes)) == 3


@pytest.mark.parametrize(
    ("network", "multiplications"),
    [
        ("tiny_network", 48 * 8 + 8 * 10),
        pytest.param("simple-cnn", 12 * 12 * 75 * 6 + 4 * 4 * 150 * 16, marks=pytest.mark.slow),
    ],
)
def test_the_plan_tells_what_xla_counts(network, multiplications):
    config = CONFIG.replace(model=network) if network == "simple-cnn" else CONFIG
    *lines, last = as_lines(config, FEDERATION, memory=2**34, flops=1e12)
    told = json.loads(last)
    model = Parts.of(config, FEDERATION, NO_OBJECTS).model
    assert told["parameters"] == sum(leaf.size for leaf in jax.tree.leaves(model["params"]))
    # Forward and backward of the student, forward of the teacher; two operations for each multiplication.
    assert told["step_flops"] > 2 * 3 * 16 * multiplications
    assert [row["clients"] for row in told["clients"]] == [10, 50, 500, 10_000]
    assert all(row["largest_chunk"] > 1 for row in told["clients"])
    assert any("10000" in line for line in lines)


def test_objects_have_a_plan_too():
    config = Config(**SMALL)
    own = Objects(Method(name="mine", sample=AllClients(), teacher="frozen"), TinyNetwork(classes=3))
    last = [*as_lines(config, build_federation(config), memory=2**34, flops=None, objects=own)][-1]
    assert json.loads(last)["clients"][0]["models_per_round"] == 10
