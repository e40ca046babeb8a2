"""How the client axis is executed."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from rscfed_jax.config import SettingError
from rscfed_jax.core import client_axis, schedule
from rscfed_jax.core.client_axis import CLIENTS, GRID, ClientAxis
from rscfed_jax.core.schedule import NOBODY
from rscfed_jax.core.types import Slot


def axis_of(chunk, devices, grid=1):
    mesh = Mesh(np.array(jax.devices()[:devices]).reshape(grid, -1), (GRID, CLIENTS)) if devices > 1 else None
    return ClientAxis(chunk, mesh)


def slots_of(ids):
    """Slots of these clients, each with its own number as the subset."""
    there = jnp.ones(len(ids), bool)
    return Slot(jnp.asarray(ids), jnp.asarray(ids), jnp.arange(len(ids)), there, ~there)


def count_up(slot, state, factor):
    """A job as long as its client's number; the state counts the visits."""
    steps = jnp.where(slot.client == NOBODY, 0, slot.client)
    total = jax.lax.fori_loop(0, steps, lambda i, total: total + i, 0)
    return total * factor + slot.subset, state + 1


@pytest.mark.parametrize(
    ("longest_wave", "devices", "chunk", "count"),
    [
        (16, 1, 0, 5),
        (2, 1, 1, 6),
        (2, 1, 2, 5),
        (16, 2, 0, 5),
        (16, 2, 1, 1),
        (2, 2, 1, 6),
        (2, 2, 2, 5),
        (16, 2, 64, 6),
    ],
)
def test_results_do_not_depend_on_chunk_or_devices_or_waves(monkeypatch, longest_wave, devices, chunk, count):
    monkeypatch.setattr(schedule, "LONGEST_WAVE", longest_wave)
    axis = axis_of(chunk, devices)
    ids = jnp.array([4, 9, 1, 7, 3, 2])[:count]
    visits = jnp.arange(axis.rows(11))

    @jax.jit
    def run(ids, visits):
        return axis.run(count_up, ids, slots_of(ids), visits, (10,))

    out, after = run(ids, visits)
    np.testing.assert_array_equal(out, [10 * sum(range(s)) + i for i, s in enumerate(ids.tolist())])
    np.testing.assert_array_equal(after, visits.at[ids].add(1))


@pytest.mark.parametrize(("devices", "grid"), [(1, 1), (4, 2)])
def test_cells_run_as_each_would_alone(devices, grid):
    """Numbers that differ by cell and numbers that all cells share reach the right slots."""
    axis = axis_of(2, devices, grid)
    ids = jnp.array([[4, 9, 1], [7, 3, 3]])
    visits = jnp.stack([jnp.arange(axis.rows(10)), jnp.arange(axis.rows(10)) * 100])

    def job(slot, state, factor, offset):
        result, state = count_up(slot, state, factor)
        return result + offset, state

    @jax.jit
    @partial(jax.vmap, spmd_axis_name=axis.cell_axis)
    def run(ids, visits, factor):
        return axis.run(job, ids, slots_of(ids), visits, (factor, 1000))

    out, after = run(ids, visits, jnp.array([10, 20]))
    for cell, factor in enumerate((10, 20)):
        expected = [1000 + factor * sum(range(s)) + i for i, s in enumerate(ids[cell].tolist())]
        np.testing.assert_array_equal(out[cell], expected)
        np.testing.assert_array_equal(after[cell], visits[cell].at[ids[cell]].set(visits[cell][ids[cell]] + 1))


@pytest.mark.parametrize("longest_wave", [1, 16])
@pytest.mark.parametrize("devices", [1, 2])
def test_a_client_with_several_slots_starts_each_alike_and_keeps_the_last(monkeypatch, longest_wave, devices):
    monkeypatch.setattr(schedule, "LONGEST_WAVE", longest_wave)
    axis = axis_of(1, devices)
    slots = slots_of([2, 0, 2, 3, 2, NOBODY])
    work = jnp.array([5, 1, 5, 7, 5, 0])

    def job(slot, state):
        return state, 10 * state + slot.subset

    seen, after = jax.jit(lambda: axis.run(job, work, slots, jnp.arange(1, 5), ()))()
    assert seen[:5].tolist() == [3, 1, 3, 4, 3]
    assert after.tolist() == [11, 2, 34, 43]


def test_a_slot_without_work_does_not_take_back_the_state_of_one_with():
    def job(slot, state):
        return state, slot.subset + 1

    work, slots = jnp.array([5, 5, 0]), slots_of([1, 0, 1])
    _, after = jax.jit(lambda: axis_of(1, 1).run(job, work, slots, jnp.zeros(2, jnp.int32), ()))()
    assert after.tolist() == [2, 1]


def test_clients_without_a_state_run_as_well():
    def job(slot, state):
        return slot.client * 2, state

    out, after = jax.jit(lambda: axis_of(2, 2).run(job, jnp.ones(3), slots_of([1, 0, 2]), None, ()))()
    assert out.tolist() == [2, 0, 4]
    assert after is None


def test_a_compiler_that_does_not_know_the_order_does_without(monkeypatch):
    monkeypatch.setitem(client_axis.OPTIONS, "cpu", {"xla_cpu_no_such_option": "X"})
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
