"""What a round for a device that is not here is compiled with: shapes, which must be those of the real arguments."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

import rscfed_jax as rj
from rscfed_jax.core.types import OF_A_CELL, FederatedData
from rscfed_jax.runner.described import Shapes, arguments_of
from tests.helpers import SMALL

CONFIG = rj.Config(**SMALL, clients=4, min_client_size=1, subsets=2, subset_size=2)


def shape_of(leaf, *, cells=False):
    """Shape and type, with a leading axis of one cell if asked for."""
    leaf = jnp.asarray(leaf) if isinstance(leaf, float) else leaf
    return (*((1,) if cells else ()), *leaf.shape), leaf.dtype


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"labeled_clients": 4, "method": "fedavg", "sampling": "all"},
        {"labeled_fraction": 0.5},
        {"labels_at": "server", "server_labels": 2},
        {"method": "semianagg"},
    ],
    ids=["some labeled", "all labeled", "partly labeled", "labels at the server", "states of clients"],
)
def test_described_arguments_are_those_of_the_simulation(settings):
    config = CONFIG.replace(**settings)
    federation = rj.build_federation(config)
    simulation = rj.build_simulation(config, federation)
    device = jax.devices()[0]
    state, data, hyper, _ = arguments_of(simulation.algorithm, config, Shapes.of([federation]), device)

    wanted = FederatedData(
        *(
            None if part is None else shape_of(part, cells=of_cell is not None)
            for part, of_cell in zip(simulation.data, OF_A_CELL, strict=True)
        )
    )
    assert jax.tree.map(shape_of, data) == wanted
    assert jax.tree.map(shape_of, state) == jax.tree.map(partial(shape_of, cells=True), simulation.state)
    assert jax.tree.map(shape_of, hyper) == jax.tree.map(partial(shape_of, cells=True), simulation.hyper)
