"""A state as named host arrays and back."""

import json

import chex
import jax
import numpy as np
import pytest

import rscfed_jax as rj
from rscfed_jax.config import Config, SettingError
from rscfed_jax.core.client_axis import ClientAxis
from rscfed_jax.runner.build import build_cells
from rscfed_jax.runner.history import History
from rscfed_jax.runner.snapshot import (
    ITEMS,
    Snapshot,
    flat,
    put_all,
    take_all,
    take_clients,
    unflat,
    with_numbers,
)
from rscfed_jax.storage.checkpoint import Checkpoints
from tests.helpers import SMALL

CONFIG = Config(**SMALL)
AXIS = ClientAxis()


@pytest.fixture(scope="module")
def state():
    """A state of two cells, some of whose clients were selected, as no training has left it."""
    configs = [CONFIG, CONFIG.replace(seed=1)]
    fresh = build_cells(configs, [rj.build_federation(config) for config in configs]).state
    rng = np.random.default_rng(0)
    selected = np.array([[0, 3, 4], [9, 1, 7]])

    def fill(leaf):
        filled = np.zeros(leaf.shape, leaf.dtype)
        for cell, rows in enumerate(selected):
            filled[cell, rows] = rng.integers(1, 9, (len(rows), *leaf.shape[2:]))
        return filled

    return fresh._replace(clients=jax.tree.map(fill, fresh.clients), round=np.array([8, 8], np.int32))


def snapshots_of(state):
    host, begun = take_all(AXIS, state)
    found = []
    for cell in range(2):
        rows, clients = take_clients(AXIS, state.clients, cell, begun)
        own = jax.tree.map(lambda leaf, cell=cell: leaf[cell], host)
        found.append(Snapshot(own._replace(clients=clients), rows, History(own.model, clients=10)))
    return found


def like(state):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), with_numbers(state))


def test_a_state_comes_back_to_the_bit_and_holds_only_clients_that_were_selected(state):
    snapshots = []
    for snapshot, selected in zip(snapshots_of(state), ([0, 3, 4], [1, 7, 9]), strict=True):
        items = snapshot.to_arrays(CONFIG)
        assert {*ITEMS, "model"} == set(items)
        assert items["state"]["rows"].tolist() == selected
        assert items["state"]["clients.step"].shape == (3,)
        assert json.loads(items["state"]["log"].tobytes())["config"] == CONFIG.to_dict()
        snapshots.append(Snapshot.from_arrays(items, like(state), clients=10, out=None))
    fresh = build_cells([CONFIG, CONFIG], [rj.build_federation(CONFIG)] * 2).state
    chex.assert_trees_all_equal(with_numbers(put_all(AXIS, fresh, snapshots)), with_numbers(state))


def test_a_state_of_another_form_is_refused(state):
    items = snapshots_of(state)[0].to_arrays(CONFIG)
    for wrong in (
        {"rows": np.array([0, 3, 10], np.int32)},
        {"models_up": np.float32(3)},
        {"model.params.l9.bias": np.zeros(3)},
    ):
        changed = items | {"state": items["state"] | wrong}
        with pytest.raises(SettingError, match="--resume run: its state does not fit these data and settings"):
            Snapshot.from_arrays(changed, like(state), clients=10, out="run")


def test_names_are_places_in_the_tree():
    tree = {"params": {"l1": {"bias": np.zeros(2)}}, "more": (np.ones(1), None)}
    assert set(flat(tree)) == {"params.l1.bias", "more.0"}
    chex.assert_trees_all_equal(unflat(flat(tree), tree), tree)
    with pytest.raises(ValueError, match="other names, shapes or types"):
        unflat(flat(tree) | {"more.0": np.ones(2)}, tree)


def test_the_checkpoint_of_a_run_holds_the_clients_that_took_part(tmp_path):
    result = rj.train(CONFIG.replace(rounds=1), out=tmp_path / "run")
    with Checkpoints(tmp_path / "run" / "checkpoints", read_only=True) as checkpoints:
        items = checkpoints.read(1, ITEMS, pytest.fail, put_aside=False)
    selected = sorted(map(int, result.metrics[-1]["client_weights"]))
    assert items["state"]["rows"].tolist() == selected
    assert len(selected) < CONFIG.clients
    kept = jax.tree.map(np.asarray, result.simulation.state.clients)
    chosen = {name: leaf[selected] for name, leaf in flat(kept).items()}
    chex.assert_trees_all_equal({name: items["state"][f"clients.{name}"] for name in chosen}, chosen)
    rest = jax.tree.map(lambda leaf: np.delete(leaf, selected, axis=0), kept)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(rest))
