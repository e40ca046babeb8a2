"""A state as named host arrays, as checkpoints hold it, and back on the devices.

Of the clients only those are kept that were ever selected: the others have the zeros that they began with.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rscfed_jax.config import Config, SettingError
from rscfed_jax.config.documents import parse_json
from rscfed_jax.core.client_axis import CLIENTS, GRID, ClientAxis
from rscfed_jax.core.types import ClientState, State
from rscfed_jax.runner.history import History
from rscfed_jax.storage.checkpoint import Arrays

ITEMS = ("state", "best")  # what a run is resumed from; the item "model" is there for those who only want that
ROWS = "rows"  # the array that tells which clients are there
LOG = "log"  # the array, among those of the state, that holds config and history as JSON text
FEWEST_ROWS = 64  # of clients that are fetched at once


class Snapshot(NamedTuple):
    """One experiment between two rounds, on the host."""

    state: State  # the key as numbers; of the clients only those in `rows`
    rows: np.ndarray
    history: History

    def to_arrays(self, config: Config) -> dict[str, Arrays]:
        """The items of a checkpoint."""
        text = json.dumps({"config": config.to_dict(), "history": self.history.to_json()})
        more = {LOG: np.frombuffer(text.encode(), np.uint8), ROWS: self.rows}
        return {
            "state": flat(self.state) | more,
            "model": flat(self.state.model),
            "best": flat(self.history.best_model),
        }

    @classmethod
    def from_arrays(cls, items: dict[str, Arrays], like: State, *, clients: int, out: Path | None) -> "Snapshot":
        """What `to_arrays` was made of, for a state of the form of `like`."""
        state, best = dict(items["state"]), items["best"]
        try:
            content = parse_json(state.pop(LOG).tobytes())["history"]
            rows = state.pop(ROWS)
            if len(rows) and not 0 <= rows.min() <= rows.max() < clients:
                raise ValueError("other clients")
            some = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct((len(rows), *leaf.shape[1:]), leaf.dtype), like.clients
            )
            host = unflat(state, like._replace(clients=some))
            history = History.from_json(content, best_model=unflat(best, like.model), clients=clients)
        except (ValueError, KeyError, TypeError, AttributeError):
            reason = "its state does not fit these data and settings"
            raise SettingError("resume", out, reason) from None
        return cls(host, rows, history)

    def without_clients(self) -> "Snapshot":
        """The same of no client."""
        nobody = jax.tree.map(lambda leaf: leaf[:0], self.state.clients)
        return self._replace(state=self.state._replace(clients=nobody), rows=self.rows[:0])


def with_numbers(state: State) -> State:
    """A state whose key is an array of numbers, which can be stored."""
    return state._replace(key=jax.random.key_data(state.key))


def take_all(axis: ClientAxis, state: State) -> tuple[State, np.ndarray]:
    """The states of G cells on the host, without their clients, and which clients [G, rows] were ever selected."""
    # As host arrays: the next rounds may reuse the state's memory at once.
    host = axis.to_host(with_numbers(state)._replace(clients=None))
    if state.clients is None:
        return host, np.zeros((len(state.round), 0), bool)
    return host, axis.to_host(touched(state.clients))


def take_clients(
    axis: ClientAxis, clients: ClientState | None, cell: int, begun: np.ndarray
) -> tuple[np.ndarray, ClientState | None]:
    """The clients of a cell that were ever selected, and their states, on the host."""
    rows = np.flatnonzero(begun[cell]).astype(np.int32)
    # As many as a power of two, or all: there are few such programs to compile.
    size = min(begun.shape[1], max(FEWEST_ROWS, 1 << len(rows).bit_length()))
    padded = np.resize(np.append(rows, np.int32(0)), size)
    states = axis.to_host(take_rows(clients, cell, padded))
    return rows, jax.tree.map(lambda leaf: leaf[: len(rows)], states)


def put_all(axis: ClientAxis, fresh: State, snapshots: list[Snapshot]) -> State:
    """The states of the cells on the devices; `fresh` is their state before the first round, whose memory is reused."""
    clients, states = fresh.clients, [snapshot.state._replace(clients=None) for snapshot in snapshots]
    for cell, snapshot in enumerate(snapshots):
        clients = put_rows(clients, cell, snapshot.rows, snapshot.state.clients, axis=axis)
    states += states[-1:] * (len(fresh.round) - len(states))  # cells that only fill the devices
    placed = axis.place(jax.tree.map(lambda *leaves: np.stack(leaves), *states), GRID)
    return placed._replace(key=jax.random.wrap_key_data(placed.key), clients=clients)


@jax.jit
def touched(clients: Any) -> jax.Array:
    """[G, rows] which clients' states are no longer the zeros that they begin with."""
    parts = [jnp.any(leaf.reshape(*leaf.shape[:2], -1) != 0, axis=2) for leaf in jax.tree.leaves(clients)]
    return jnp.any(jnp.stack(parts), axis=0)


@jax.jit
def take_rows(clients: Any, cell: int, rows: np.ndarray) -> Any:
    """The states of some clients of a cell."""
    return jax.tree.map(lambda leaf: leaf[cell, rows], clients)


@partial(jax.jit, static_argnames="axis", donate_argnames="clients")
def put_rows(clients: Any, cell: int, rows: np.ndarray, states: Any, *, axis: ClientAxis) -> Any:
    """The states of all clients [G, rows, ...] with those of some clients of a cell in their place."""
    filled = jax.tree.map(lambda leaf, some: leaf.at[cell, rows].set(some), clients, states)
    return axis.place(filled, GRID, CLIENTS)


def flat(tree: Any) -> Arrays:
    """The leaves by their place in the tree, as in `clients.teacher.params.l3.bias`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def unflat(arrays: Arrays, like: Any) -> Any:
    """The tree that `flat` took apart; a ValueError if it was not of the form of `like`."""
    wanted = {name: (leaf.shape, leaf.dtype) for name, leaf in flat(like).items()}
    if {name: (leaf.shape, leaf.dtype) for name, leaf in arrays.items()} != wanted:
        raise ValueError("the arrays have other names, shapes or types")
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in wanted])
