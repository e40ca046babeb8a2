"""Which slot of work runs when and on which device."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rscfed_jax.core.schedule import NOBODY, WAVE_BYTES, last_slots, order_of, take


@pytest.mark.parametrize(("slots", "chunk", "devices"), [(1, 1, 1), (7, 2, 2), (16, 1, 2), (40, 3, 2), (40, 4, 1)])
def test_each_slot_runs_once(slots, chunk, devices):
    order_by = jax.jit(partial(order_of, chunk=chunk, devices=devices, size=10 * 2**20))
    for seed in range(20):
        work = np.random.default_rng(seed).integers(0, 1 + seed**2, slots)
        order = np.asarray(order_by(work))
        assert order.shape[1] == devices
        assert sorted(order[order != NOBODY].tolist()) == list(range(slots))


def test_devices_get_equal_work_and_chunks_alike_sizes():
    sizes = np.array([100, 1, 90, 2, 80, 3, 70, 4])
    order = np.asarray(order_of(jnp.array(sizes), chunk=1, devices=2, size=1))
    halves = sizes[order].sum(axis=(0, 2, 3))
    assert abs(halves[0] - halves[1]) <= 2
    order = np.asarray(order_of(jnp.array(sizes), chunk=4, devices=1, size=1))
    assert sizes[order].reshape(2, 4).tolist() == [[100, 90, 80, 70], [4, 3, 2, 1]]


def test_an_odd_number_of_slots_is_shared_by_work_not_by_number():
    sizes = np.array([92, 92, 92, 89, 83, 83, 80, 78, 78, 76, 66, 66, 64, 60, 46])
    order = np.asarray(order_of(jnp.array(sizes), chunk=1, devices=2, size=1))
    loads = [sizes[mine[mine != NOBODY]].sum() for mine in order.swapaxes(0, 1)]
    assert abs(loads[0] - loads[1]) <= 12  # dealt forth and back: 45


def test_large_states_come_in_short_waves():
    waves, devices, chunks, _ = order_of(jnp.ones(20), chunk=1, devices=2, size=WAVE_BYTES // 4).shape
    assert (waves, devices, chunks) == (5, 2, 2)


def test_only_the_last_slot_of_a_client_brings_its_state_home():
    ids = jnp.array([2, 0, 2, NOBODY, 1, 0])
    assert last_slots(ids, number=3).tolist() == [NOBODY, NOBODY, 2, NOBODY, 1, 0]


def test_a_place_that_is_not_there_is_nobodys():
    assert take(jnp.array([7, 8]), np.array([1, 2, NOBODY])).tolist() == [8, NOBODY, NOBODY]
