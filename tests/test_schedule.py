"""Which slot of work runs when and on which device."""

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rscfed_jax.schedule import NOBODY, WAVE_BYTES, order_of


@settings(max_examples=12)  # each size is compiled anew
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40), st.integers(1, 4), st.integers(1, 2))
def test_each_slot_runs_once(sizes, chunk, devices):
    order = np.asarray(order_of(jnp.array(sizes), chunk=chunk, devices=devices, size=10 * 2**20))
    assert order.shape[1] == devices
    assert sorted(order[order != NOBODY].tolist()) == list(range(len(sizes)))


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
