"""Generic tests over the table of all methods."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rscfed_jax import config as settings
from rscfed_jax.config import Config
from rscfed_jax.methods import METHODS
from rscfed_jax.core.repeat import share
from rscfed_jax.core.round import one_round, scan_rounds
from tests.conftest import CLASSES, Tiny, assert_trees_close, assert_trees_equal, ragged_federation
from tests.test_rounds import FixedSubsets

once = jax.jit(one_round, static_argnames="algorithm")


def test_every_method_can_be_named():
    assert tuple(METHODS) == settings.METHODS


@pytest.mark.parametrize("name", METHODS)
def test_a_round_keeps_the_shapes_of_the_state_and_scan_equals_loop(name):
    tiny = Tiny()
    algorithm = tiny.algorithm(method=METHODS[name](Config(subsets=2, subset_size=3)))
    state = tiny.state(algorithm)
    looped = state
    for _ in range(3):
        looped, report = once(algorithm, looped, tiny.data, tiny.hyper)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), looped) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), state
    )
    np.testing.assert_allclose(report.weights.sum(axis=1), 1, atol=1e-5)
    scan = jax.jit(scan_rounds, static_argnames=("algorithm", "rounds"))
    scanned, _ = scan(algorithm, state, tiny.data, tiny.hyper, rounds=3)
    assert_trees_close(scanned.model, looped.model, atol=1e-5)


def test_sso_is_rscfed_with_beta_zero():
    tiny = Tiny(beta=0.0)
    models = []
    for name in ("rscfed", "sso"):
        algorithm = tiny.algorithm(method=METHODS[name](Config(subsets=2, subset_size=3)))
        state, _ = once(algorithm, tiny.state(algorithm), tiny.data, tiny.hyper)
        models.append(state.model)
    assert_trees_close(*models, atol=1e-5)


def test_fedavg_trains_the_labeled_clients_alone():
    tiny = Tiny()
    algorithm = tiny.algorithm(method=METHODS["fedavg"](Config()))
    state, report = once(algorithm, tiny.state(algorithm), tiny.data, tiny.hyper)
    assert report.subsets.tolist() == [[1, 4]]
    assert jnp.flatnonzero(state.clients.step).tolist() == [1, 4]


def test_fed_consist_gives_the_labeled_clients_half_of_the_weight_or_their_data_amount():
    for labeled_share, expected in ((0.5, 0.5), ("off", 27 / 63)):
        tiny = Tiny(labeled_share=labeled_share)
        algorithm = tiny.algorithm(method=METHODS["fed_consist"](Config()))
        _, report = once(algorithm, tiny.state(algorithm), tiny.data, tiny.hyper)
        assert report.subsets.tolist() == [[0, 1, 2, 3, 4]]
        assert float(report.weights[0, [1, 4]].sum()) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_hidden_labels_cannot_influence_any_method(name):
    algorithm = None
    models = []
    for shuffle in (False, True):
        federation = ragged_federation()
        if shuffle:
            labels = federation.dataset.train_labels.copy()
            hidden = ~np.concatenate(federation.label_visible)
            labels[hidden] = (labels[hidden] + 1) % CLASSES
            federation = federation._replace(dataset=federation.dataset._replace(train_labels=labels))
        tiny = Tiny(federation)
        algorithm = algorithm or tiny.algorithm(method=METHODS[name](Config(subsets=2, subset_size=3)))
        state, _ = once(algorithm, tiny.state(algorithm), tiny.data, tiny.hyper)
        models.append(state.model)
    assert_trees_equal(*models)


@pytest.mark.parametrize("name", METHODS)
def test_the_order_of_clients_does_not_matter(name):
    """The same clients, their ids and so their keys with them, in another order agree on the same model."""
    tiny = Tiny()
    method = METHODS[name](Config(subsets=2, subset_size=3))
    subsets = method.sample(jax.random.key(0), tiny.data)
    models = []
    for order in (subsets, jnp.roll(subsets, 1, axis=1)):
        fixed = dataclasses.replace(method, sample=FixedSubsets(tuple(map(tuple, order.tolist()))))
        algorithm = tiny.algorithm(method=fixed)
        state, _ = once(algorithm, tiny.state(algorithm), tiny.data, tiny.hyper)
        models.append(state.model)
    assert_trees_close(*models, atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_one_subset_of_one_client_gives_that_clients_model(name):
    tiny = Tiny()
    method = METHODS[name](Config(subsets=2, subset_size=3))
    models = []
    for copies in (1, 2):  # the mean of two alike subsets is the model of one
        fixed = dataclasses.replace(method, sample=Fixed((3,), copies))
        algorithm = tiny.algorithm(method=fixed, repeat=share)
        state, report = once(algorithm, tiny.state(algorithm), tiny.data, tiny.hyper)
        assert report.weights.tolist() == [[1.0]] * copies
        models.append(state.model)
    assert_trees_close(*models, atol=1e-6)


@dataclasses.dataclass(frozen=True)
class Fixed:
    """A sampler that always draws the same subset, so many times."""

    ids: tuple
    copies: int = 1

    def __call__(self, key, data):
        """[M, K] client ids."""
        return jnp.tile(jnp.array(self.ids, jnp.int32), (self.copies, 1))
