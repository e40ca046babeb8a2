"""What devices send each other while they train: the rows of a stacked tree that each asks for or has changed.

A tree has leaves [cells, rows, ...], of whose rows each device holds an equal part, in order. `over` is the axis of the
mesh that the devices form; None for a single device, which holds all rows.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from rscfed_jax.core.types import Array

Tree = TypeVar("Tree")


def this_device(over: str | None) -> Array | int:
    """The number of the device that runs this."""
    return 0 if over is None else jax.lax.axis_index(over)


def fetch(tree: Tree, cells: Array, rows: Array, *, over: str | None) -> Tree:
    """The rows [devices, ...] of `cells`, each on the device that asks for it; a row that nobody has is zero."""
    places = _places(tree, cells, rows, over=over)
    found = jax.tree.map(lambda leaf: _flat_rows(leaf).at[places].get(mode="fill", fill_value=0), tree)
    if over is None:
        return jax.tree.map(lambda leaf: leaf[0], found)
    return _at_once(lambda leaf: jax.lax.psum_scatter(leaf, over), found, leading=rows.ndim)


def store(tree: Tree, cells: Array, rows: Array, values: Tree, *, over: str | None) -> Tree:
    """The tree with the rows [devices, ...] of `cells` replaced by the devices' own `values`."""
    places = _places(tree, cells, rows, over=over)
    if over is None:
        values = jax.tree.map(lambda leaf: leaf[None], values)
    else:
        values = _at_once(lambda leaf: jax.lax.all_gather(leaf, over), values, leading=rows.ndim - 1)

    def put(leaf: Array, value: Array) -> Array:
        return _flat_rows(leaf).at[places].set(value, mode="drop").reshape(leaf.shape)

    return jax.tree.map(put, tree, values)


def _places(tree: Tree, cells: Array, rows: Array, *, over: str | None) -> Array:
    """Where this device holds `rows` of `cells` in its flat leaves [cells * rows, ...]; out of range if nowhere."""
    leaves = jax.tree.leaves(tree)
    here, number = leaves[0].shape[:2] if leaves else (0, 1)
    local = rows - this_device(over) * number
    return jnp.where((local >= 0) & (local < number) & (cells < here), cells * number + local, here * number)


def _at_once(collective: Callable[[Array], Array], tree: Tree, *, leading: int) -> Tree:
    """A collective over `leading` axes of a pytree, as one array of each type: devices meet once, not for each leaf."""
    leaves, structure = jax.tree.flatten(tree)
    out: list = [None] * len(leaves)
    for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
        places = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
        flat = [leaves[i].reshape(*leaves[i].shape[:leading], -1) for i in places]
        together = collective(jnp.concatenate(flat, axis=-1))
        parts = jnp.split(together, np.cumsum([part.shape[-1] for part in flat])[:-1], axis=-1)
        for i, part in zip(places, parts, strict=True):
            out[i] = part.reshape(*part.shape[:-1], *leaves[i].shape[leading:])
    return jax.tree.unflatten(structure, out)


def _flat_rows(leaf: Array) -> Array:
    """[cells, rows, ...] as [cells * rows, ...]."""
    return leaf.reshape(-1, *leaf.shape[2:])
