"""How the client axis is executed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh

from rscfed_jax.clients import AXIS, NOBODY, ClientAxis, _balanced_order, use_all_cores
from rscfed_jax.config import SettingError


def work(size):
    """A job whose length is its own, like a client's epoch."""
    return jax.lax.fori_loop(0, size, lambda i, total: total + i, 0)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("chunk", [0, 1, 2, 3, 64])
@pytest.mark.parametrize("count", [1, 5, 6])
def test_results_do_not_depend_on_chunk_or_devices(devices, chunk, count):
    mesh = Mesh(np.array(jax.devices()[:2]), (AXIS,)) if devices == 2 else None
    sizes = jnp.array([4, 9, 1, 7, 3, 2])[:count]

    def job(size, factor):
        return work(jnp.where(size == NOBODY, 0, size)) * factor

    out = jax.jit(lambda sizes: ClientAxis(chunk, mesh).map(job, sizes, (sizes,), (10,)))(sizes)
    np.testing.assert_array_equal(out, [10 * sum(range(s)) for s in sizes.tolist()])


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20), st.integers(1, 4), st.integers(1, 4))
def test_each_slot_runs_once_and_is_found_again(sizes, chunk, devices):
    order, position = (np.asarray(a) for a in _balanced_order(jnp.array(sizes), chunk, devices))
    assert sorted(order[order != NOBODY].tolist()) == list(range(len(sizes)))
    np.testing.assert_array_equal(order[position], np.arange(len(sizes)))


def test_devices_get_equal_work_and_chunks_alike_sizes():
    sizes = np.array([100, 1, 90, 2, 80, 3, 70, 4])
    order, _ = _balanced_order(jnp.array(sizes), 1, 2)
    halves = sizes[np.asarray(order)].reshape(2, -1).sum(axis=1)
    assert abs(halves[0] - halves[1]) <= 2
    order, _ = _balanced_order(jnp.array(sizes), 4, 1)
    assert sizes[np.asarray(order)].reshape(2, 4).tolist() == [[100, 90, 80, 70], [4, 3, 2, 1]]


def test_the_default_on_cpu_is_one_client_per_core():
    axis = ClientAxis.create("auto", "auto")
    assert (axis.chunk, axis.devices) == (1, 2)
    assert ClientAxis.create(4, 1) == ClientAxis(4, None)


def test_more_devices_than_there_are_is_refused():
    with pytest.raises(SettingError, match="--devices 3: must be from 1 to 2"):
        ClientAxis.create("auto", 3)


def test_using_all_cores_leaves_a_running_jax_alone():
    assert use_all_cores() == 2
