"""How the client axis is executed."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from rscfed_jax import clients, schedule
from rscfed_jax.clients import CLIENTS, GRID, ClientAxis
from rscfed_jax.config import SettingError
from rscfed_jax.cores import use_all_cores
from rscfed_jax.schedule import NOBODY


def count_up(client, bonus, state, factor):
    """A job as long as its client's number; the state counts the visits."""
    steps = jnp.where(client == NOBODY, 0, client)
    total = jax.lax.fori_loop(0, steps, lambda i, total: total + i, 0)
    return total * factor + bonus, state + 1


def axis_of(chunk, devices):
    mesh = Mesh(np.array(jax.devices()[:devices])[None], (GRID, CLIENTS)) if devices > 1 else None
    return ClientAxis(chunk, mesh)


@pytest.mark.parametrize("longest_wave", [2, 16])
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("chunk", [0, 1, 2, 64])
@pytest.mark.parametrize("count", [1, 5, 6])
def test_results_do_not_depend_on_chunk_or_devices_or_waves(monkeypatch, longest_wave, devices, chunk, count):
    monkeypatch.setattr(schedule, "LONGEST_WAVE", longest_wave)
    axis = axis_of(chunk, devices)
    ids = jnp.array([4, 9, 1, 7, 3, 2])[:count]
    visits = jnp.arange(axis.rows(11))

    @jax.jit
    def run(ids, visits):
        return axis.run(count_up, ids, ids, (jnp.arange(count),), visits, (10,))

    out, after = run(ids, visits)
    np.testing.assert_array_equal(out, [10 * sum(range(s)) + i for i, s in enumerate(ids.tolist())])
    np.testing.assert_array_equal(after, visits.at[ids].add(1))


@pytest.mark.parametrize("longest_wave", [1, 16])
@pytest.mark.parametrize("devices", [1, 2])
def test_a_client_with_several_slots_starts_each_alike_and_keeps_the_last(monkeypatch, longest_wave, devices):
    monkeypatch.setattr(schedule, "LONGEST_WAVE", longest_wave)
    axis = axis_of(1, devices)
    ids = jnp.array([2, 0, 2, 3, 2, NOBODY])

    def job(client, slot, state, shared):
        return state, 10 * state + slot

    states = jnp.arange(1, 5)
    work = jnp.array([5, 1, 5, 7, 5, 0])
    seen, after = jax.jit(lambda: axis.run(job, work, ids, (jnp.arange(6),), states, (0,)))()
    assert seen[:5].tolist() == [3, 1, 3, 4, 3]
    assert after.tolist() == [11, 2, 34, 43]


def test_a_slot_without_work_does_not_take_back_the_state_of_one_with():
    work, ids, states = jnp.array([5, 5, 0]), jnp.array([1, 0, 1]), jnp.zeros(2, jnp.int32)
    slots = (jnp.arange(1, 4),)
    _, after = axis_of(1, 1).run(lambda client, slot, state, _: (state, slot), work, ids, slots, states, (0,))
    assert after.tolist() == [2, 1]


def test_a_compiler_that_does_not_know_the_order_does_without(monkeypatch):
    monkeypatch.setattr(clients, "FRUGAL_ORDER", {"xla_cpu_no_such_option": "X"})
    program = axis_of(1, 2).compile(jax.jit(lambda x: x + 1).lower(1))
    assert program(1) == 2


def test_the_default_on_cpu_is_one_client_per_core():
    axis = ClientAxis.create("auto", "auto")
    assert (axis.chunk, axis.devices) == (1, 4)
    assert ClientAxis.create(4, 1) == ClientAxis(4, None)


def test_of_large_models_fewer_cores_exchange_states():
    chosen = [ClientAxis.create("auto", "auto", model_bytes=2**20 * mib).devices for mib in (1, 45, 100, 10_000)]
    assert chosen == [4, 4, 2, 1]
    assert ClientAxis.create("auto", 4, model_bytes=2**40).devices == 4
    assert ClientAxis.create("auto", "auto", 2, model_bytes=2**40).devices == 2


def test_more_devices_than_there_are_is_refused():
    with pytest.raises(SettingError, match="--devices 5: must be from 1 to 4"):
        ClientAxis.create("auto", 5)


def test_devices_are_a_mesh_of_cells_and_clients():
    axis = ClientAxis.create(1, 4, 2)
    assert (axis.devices, axis.grid_devices, axis.client_devices) == (4, 2, 2)
    assert axis.rows(5) == 6
    with pytest.raises(SettingError, match="--grid-devices 3: must divide the number of devices, 4"):
        ClientAxis.create(1, 4, 3)


@pytest.mark.parametrize(("grid", "count"), [(1, 7), (2, 3), (2, 4)])
def test_a_map_shares_its_items_over_all_devices(grid, count):
    axis = ClientAxis.create(1, 4, grid)
    out = jax.jit(lambda items: axis.map(lambda item, factor: factor * item, items, 3))(jnp.arange(count))
    assert out.tolist() == [3 * item for item in range(count)]


def test_using_all_cores_leaves_a_running_jax_alone():
    assert use_all_cores() == 4


def test_a_device_may_wait_long_for_another(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    use_all_cores()
    flags = os.environ["XLA_FLAGS"]
    assert flags.startswith("--xla_cpu_enable_fast_math=false ")
    assert "call_terminate_timeout_seconds=1000000" in flags
    use_all_cores()
    assert os.environ["XLA_FLAGS"] == flags
