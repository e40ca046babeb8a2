"""What an experiment would take."""

import json

import jax
import pytest

from rscfed_jax.config import Config, SettingError, read_size
from rscfed_jax.data.federation import build_federation
from rscfed_jax.plan import Step, as_lines, estimate, group_bytes, largest_chunk, model_like, tree_bytes
from rscfed_jax.simulation import build_simulation

CONFIG = Config(train_fraction=0.05, image_size=16, batch_size=16, devices=1)
PARAMETERS = 5 * 5 * 3 * 6 + 6 + 5 * 5 * 6 * 16 + 16  # of the two convolutions


@pytest.mark.parametrize(
    ("text", "number"),
    [("16GiB", 2**34), ("20T", 2e13), ("1.5e13", 1.5e13), ("64 MB", 64e6), ("8gib", 2**33), ("7", 7)],
)
def test_sizes_are_read_with_their_units(text, number):
    assert read_size("memory", text) == number


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "0", "12parsec", "1e400", "nan"])
def test_wrong_sizes_are_refused(text):
    with pytest.raises(SettingError, match=r"--memory .*: must be a number above 0"):
        read_size("memory", text)


def test_bytes_are_those_of_the_real_state():
    federation = build_federation(CONFIG)
    simulation = build_simulation(CONFIG, federation)
    taken = estimate(CONFIG, federation, 1.0, clients=10, devices=1)
    assert taken.state_bytes == tree_bytes(simulation.state.clients)
    assert taken.data_bytes == simulation.data.images.nbytes + simulation.test.images.nbytes
    assert taken.bytes_up == 15 * tree_bytes(simulation.state.model)
    assert taken.bytes_down == 10 * tree_bytes(simulation.state.model)
    # Fifteen clients one at a time in one wave: each device fetches a state, and stores it with the model.
    model, client = tree_bytes(simulation.state.model), taken.state_bytes // 10
    assert taken.exchange_bytes == 15 * (2 * client + model)
    assert estimate(CONFIG, federation, 1.0, clients=10, devices=2).exchange_bytes == 8 * 2 * (2 * client + model)
    fresh = CONFIG.replace(client_state="fresh")
    assert estimate(fresh, federation, 1.0, clients=10_000, devices=1).state_bytes == 0
    both = group_bytes([CONFIG, CONFIG], [federation, federation])
    assert both - group_bytes([CONFIG], [federation]) == taken.state_bytes + taken.models_bytes


def test_steps_follow_the_method():
    federation = build_federation(CONFIG)
    steps = -(-federation.sizes // 16)

    def of(**changes):
        return estimate(CONFIG.replace(**changes), federation, 2.0, clients=10, devices=1)

    assert of().steps_per_round == pytest.approx(15 * steps.mean())
    assert of(method="fed_consist").steps_per_round == steps.sum()
    assert of(method="fedavg").steps_per_round == steps[federation.labeled].sum()
    assert of(method="fedavg").models_per_round == 1
    assert (of().models_per_round, of(repeat="share").models_per_round) == (15, 10)
    assert of(repeat="share").bytes_up == of(repeat="share").bytes_down
    assert of().flops_per_round == 2 * of().steps_per_round
    assert of().hours(100, 1e3) == pytest.approx(100 * of().flops_per_round / 1e3 / 3600)


def test_the_largest_chunk_fills_the_memory_that_is_left():
    federation = build_federation(CONFIG)
    taken = estimate(CONFIG, federation, 1.0, clients=10, devices=1)
    step = Step(1.0, bytes_first=1000, bytes_more=100)
    assert largest_chunk(step, taken, taken.resident_bytes + 999) == 0
    assert largest_chunk(step, taken, taken.resident_bytes + 1000) == 1
    assert largest_chunk(step, taken, taken.resident_bytes + 1000 + 2 * (100 + taken.more_bytes)) == 3


def test_the_plan_tells_what_xla_counts():
    *lines, last = as_lines(CONFIG, build_federation(CONFIG), memory=2**34, flops=1e12)
    told = json.loads(last)
    model = model_like(CONFIG, 10)
    assert told["parameters"] == sum(leaf.size for leaf in jax.tree.leaves(model["params"])) > PARAMETERS
    # Forward and backward of the student, forward of the teacher; two operations for each multiplication.
    multiplications = 16 * (12 * 12 * 75 * 6 + 4 * 4 * 150 * 16)
    assert told["step_flops"] > 2 * 3 * multiplications
    assert [row["clients"] for row in told["clients"]] == [10, 50, 500, 10_000]
    assert all(row["largest_chunk"] > 1 for row in told["clients"])
    assert any("10000" in line for line in lines)
