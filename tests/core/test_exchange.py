"""What devices send each other: rows of a stacked tree, wherever they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from rscfed_jax.core.exchange import fetch, store, this_device

DEVICES, CELLS, ROWS = 4, 2, 8
TREE = {
    "model": np.arange(CELLS * ROWS * 3, dtype=np.float32).reshape(CELLS, ROWS, 3),
    "bias": -np.arange(CELLS * ROWS, dtype=np.float32).reshape(CELLS, ROWS),
    "step": np.arange(CELLS * ROWS, dtype=np.int32).reshape(CELLS, ROWS),
}
# For each device two requests; the row beyond the last is nobody's.
CELL = np.array([[0, 1], [1, 0], [0, 0], [1, 1]])
ROW = np.array([[7, 0], [3, 3], [ROWS, 1], [2, 5]])


def on(devices, function, *out_axes):
    """The function of (tree, over) on one device, or on several of which each holds a part of the rows."""
    if devices == 1:
        return lambda tree: function(tree, None)
    mesh = Mesh(np.array(jax.devices()[:devices]), ("clients",))
    return jax.shard_map(
        lambda tree: function(tree, "clients"),
        mesh=mesh,
        in_specs=PartitionSpec(None, "clients"),
        out_specs=PartitionSpec(*out_axes),
        check_vma=False,
    )


@pytest.mark.parametrize("devices", [1, DEVICES])
def test_every_device_gets_the_rows_that_it_asks_for(devices):
    cell, row = CELL[:devices], ROW[:devices]
    found = jax.jit(on(devices, lambda tree, over: fetch(tree, cell, row, over=over), "clients"))(TREE)
    for name, leaf in TREE.items():
        padded = np.concatenate([leaf, np.zeros_like(leaf[:, :1])], axis=1)
        np.testing.assert_array_equal(found[name], padded[cell, row].reshape(-1, *leaf.shape[2:]))


@pytest.mark.parametrize("devices", [1, DEVICES])
def test_rows_are_stored_where_they_belong_and_those_of_nobody_nowhere(devices):
    cell, row = CELL[:devices], ROW[:devices]

    def write(tree, over):
        number = 100 + this_device(over)
        values = jax.tree.map(lambda leaf: jnp.full((2, *leaf.shape[2:]), number, leaf.dtype), tree)
        return store(tree, cell, row, values, over=over)

    stored = jax.jit(on(devices, write, None, "clients"))(TREE)
    for name, leaf in TREE.items():
        expected = leaf.copy()
        for device in range(devices):
            for c, r in zip(cell[device], row[device], strict=True):
                if r < ROWS:
                    expected[c, r] = 100 + device
        np.testing.assert_array_equal(stored[name], expected)
