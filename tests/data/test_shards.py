"""Clients that hold samples of K classes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rscfed_jax.config import Config, SettingError
from rscfed_jax.data.federation import build_federation
from rscfed_jax.data.shards import deal_classes, shard_partition


@given(seed=st.integers(0, 10**6), clients=st.integers(1, 12), classes=st.integers(1, 9), data=st.data())
def test_every_client_has_k_classes_and_every_class_equally_many_clients(seed, clients, classes, data):
    number = data.draw(st.integers(1, classes))
    held = deal_classes(classes, clients, number, np.random.default_rng(seed))
    assert (held.sum(axis=1) == number).all()
    assert np.ptp(held.sum(axis=0)) <= 1


@given(seed=st.integers(0, 10**6), clients=st.integers(3, 10), number=st.integers(2, 5))
def test_every_sample_is_held_once_by_a_client_of_its_class(seed, clients, number):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(5), [40, 60, 80, 41, 79]))
    parts = shard_partition(labels, clients, classes_per_client=number, min_size=1, rng=np.random.default_rng(seed))
    assert sorted(np.concatenate(parts).tolist()) == list(range(300))
    counts = np.array([[sum(labels[part] == label) for label in range(5)] for part in parts])
    assert ((counts > 0).sum(axis=1) == number).all()
    for column in counts.T:
        assert np.ptp(column[column > 0]) <= 1


def test_who_holds_which_classes_follows_the_seed():
    held = [deal_classes(10, 10, 2, np.random.default_rng(seed)).tolist() for seed in (0, 0, 1)]
    assert held[0] == held[1] != held[2]


def test_a_class_with_fewer_samples_than_clients_is_refused():
    labels = np.array([0] * 50 + [1] * 3)
    with pytest.raises(SettingError, match="class 1 has 3 samples for 4 clients"):
        shard_partition(labels, 4, classes_per_client=2, min_size=1, rng=np.random.default_rng(0))


def test_a_federation_of_two_classes_per_client():
    config = Config(classes_per_client=2)
    federation = build_federation(config)
    assert config.gamma is None
    assert ((federation.class_counts > 0).sum(axis=1) == 2).all()
    assert federation.sizes.sum() == 12_000
    assert (federation.labeled.sum(), config.replace(classes_per_client=None).gamma) == (1, 0.8)
