"""Subsets."""

import jax
import numpy as np

from rscfed_jax.sampling import AllClients, LabeledClients, RandomSubsets
from tests.conftest import Tiny


def test_subsets_hold_distinct_clients_and_are_independent():
    data = Tiny().data
    draws = np.stack([RandomSubsets(3, 4)(jax.random.key(seed), data) for seed in range(60)])
    assert draws.shape == (60, 3, 4)
    assert all(len(set(subset)) == 4 for subset in draws.reshape(-1, 4).tolist())
    assert (draws[:, 0] != draws[:, 1]).any()
    counts = np.bincount(draws.ravel(), minlength=5)
    np.testing.assert_allclose(counts / counts.sum(), 0.2, atol=0.03)


def test_all_and_labeled_clients():
    data = Tiny().data
    assert AllClients()(jax.random.key(0), data).tolist() == [[0, 1, 2, 3, 4]]
    assert LabeledClients()(jax.random.key(0), data).tolist() == [[1, 4]]
