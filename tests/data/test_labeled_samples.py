"""Labels at the server, and labeled samples that have a partition of their own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rscfed_jax.config import Config, SettingError
from rscfed_jax.data import partition
from rscfed_jax.data.federation import build_federation
from rscfed_jax.data.labeled_samples import draw_for_server, draw_pool, share_pool
from rscfed_jax.data.load import load_dataset
from rscfed_jax.data.table import HIDDEN, train_table

SERVER = {"labels_at": "server", "dataset": "synthetic:train=400,test=40,classes=4,size=8", "image_size": 16}
POOLED = {"labeled_fraction": 0.1, "labeled_gamma": 0.5}


def all_samples(federation):
    return sorted(np.concatenate(federation.samples).tolist())


@given(seed=st.integers(0, 10**6), number=st.integers(1, 10))
def test_the_server_draws_so_many_samples_of_each_class_and_more_labels_keep_those_before(seed, number):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(3), [11, 15, 30]))
    free = np.arange(56)
    few, more = (draw_for_server(labels, n, free, np.random.default_rng(seed)) for n in (number, number + 1))
    assert [(labels[few] == label).sum() for label in range(3)] == [number] * 3
    assert len(set(few.tolist())) == 3 * number
    assert set(few) < set(more)


@pytest.mark.parametrize("settings", [{}, {"gamma": "iid"}, {"gamma": 0.3, "seed": 3}, {"classes_per_client": 2}])
def test_the_server_is_the_last_holder_and_alone_has_labels(settings):
    config = Config(**SERVER, server_labels=7, **settings)
    federation = build_federation(config)
    assert (config.server, config.holders, len(federation.samples), federation.server) == (10, 11, 11, 10)
    assert federation.names == [*map(str, range(10)), "server"]
    assert all_samples(federation) == list(range(400))
    assert federation.class_counts[10].tolist() == federation.label_counts[10].tolist() == [7] * 4
    assert federation.labeled.tolist() == [False] * 10 + [True]
    assert federation.unlabeled.tolist() == [True] * 10 + [False]
    assert not federation.label_counts[:10].any()
    assert federation.to_json()["server"] == 10


def test_no_label_of_a_client_is_in_the_table():
    federation = build_federation(Config(**SERVER, server_labels=7))
    table = train_table([federation], image_size=8)
    start = table["starts"][0, 10]
    assert (table["labels"][0, :start] == HIDDEN).all()
    np.testing.assert_array_equal(table["labels"][0, start:], table["truth"][0, start:])
    assert (table["labeled_ids"].tolist(), table["unlabeled_ids"].tolist()) == ([[10]], [list(range(10))])


def test_validation_and_train_fraction_leave_the_server_its_labels():
    config = Config(**SERVER, server_labels=7, validation=0.2, train_fraction=0.5)
    federation = build_federation(config)
    whole = build_federation(config.replace(train_fraction=1.0))
    assert federation.class_counts[10].tolist() == [7] * 4
    np.testing.assert_array_equal(federation.samples[10], whole.samples[10])
    np.testing.assert_allclose(federation.sizes[:10], whole.sizes[:10] / 2, atol=0.5)
    assert not set(all_samples(whole)) & set(whole.dataset.held_out.tolist())


def test_more_labels_of_a_class_than_there_are_is_refused():
    with pytest.raises(SettingError, match=r"--server-labels 101: the training set has only \d+ samples of class \d"):
        build_federation(Config(**SERVER, server_labels=101))


def test_a_partition_file_keeps_its_clients_but_for_what_the_server_took(tmp_path):
    path = str(tmp_path / "mine.npz")
    drawn = build_federation(Config(**SERVER))
    partition.save_partition(path, [np.arange(0, 200), np.arange(200, 300)])
    config = Config(**SERVER, clients=2, partition_file=path)
    federation = build_federation(config)
    np.testing.assert_array_equal(federation.samples[2], drawn.samples[10])
    taken = set(federation.samples[2].tolist())
    assert set(federation.samples[0].tolist()) == set(range(200)) - taken
    assert set(federation.samples[1].tolist()) == set(range(200, 300)) - taken
    # An exported federation is read back as it was.
    partition.save_partition(path, drawn.samples[: drawn.server])
    again = build_federation(Config(**SERVER, partition_file=path))
    for one, other in zip(drawn.samples, again.samples, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_setting_of_the_labels_does_not_shift_the_draw_of_a_data_set_or_of_clients():
    """One stream for each decision: another number of labels leaves the same samples at the server first."""
    few, more = (build_federation(Config(**SERVER, server_labels=n)) for n in (5, 20))
    assert set(few.samples[10]) < set(more.samples[10])


@given(seed=st.integers(0, 10**6), fraction=st.floats(0.01, 0.9))
def test_a_pool_is_the_fraction_of_each_class(seed, fraction):
    labels = np.random.default_rng(seed).integers(0, 4, 200)
    free = np.arange(150)
    pool = draw_pool(labels, fraction, free, np.random.default_rng(seed))
    assert len(set(pool.tolist())) == len(pool)
    assert pool.max() < 150
    for label in range(4):
        there = sum(labels[:150] == label)
        assert sum(labels[pool] == label) == max(1, round(there * fraction))


@given(seed=st.integers(0, 10**6), gamma=st.sampled_from(["iid", 0.5, 10.0]))
def test_a_pool_is_shared_out_and_every_client_gets_a_label(seed, gamma):
    labels = np.random.default_rng(seed).integers(0, 4, 200)
    pool = np.arange(0, 200, 2)
    shares = share_pool(labels, pool, 5, gamma=gamma, rng=np.random.default_rng(seed))
    assert sorted(np.concatenate(shares).tolist()) == pool.tolist()
    assert min(map(len, shares)) >= 1


@pytest.mark.parametrize("settings", [{}, {"gamma": "iid"}, {"labeled_gamma": "iid"}, {"seed": 2}])
def test_labeled_and_unlabeled_samples_have_partitions_of_their_own(settings):
    federation = build_federation(Config(**POOLED | settings))
    labels = federation.dataset.train_labels
    assert all_samples(federation) == list(range(12_000))
    assert federation.labeled.all()
    assert federation.unlabeled.all()
    expected = [round(0.1 * (labels == label).sum()) for label in range(10)]
    assert federation.label_counts.sum(axis=0).tolist() == expected


def test_a_label_gamma_changes_who_holds_the_labels_and_not_the_unlabeled_samples():
    one, other = (build_federation(Config(**POOLED | {"labeled_gamma": gamma})) for gamma in (0.1, 10.0))
    for a, b, seen_a, seen_b in zip(one.samples, other.samples, one.label_visible, other.label_visible, strict=True):
        np.testing.assert_array_equal(a[~seen_a], b[~seen_b])
    spread = [np.std(federation.label_counts, axis=0).mean() for federation in (one, other)]
    assert spread[0] > 1.5 * spread[1]


def test_a_pool_with_validation_and_a_part_of_the_samples():
    dataset = load_dataset("fashion")
    federation = build_federation(Config(**POOLED, validation=0.2, train_fraction=0.1), dataset=dataset)
    assert not set(all_samples(federation)) & set(federation.dataset.held_out.tolist())
    assert federation.label_counts.sum() == pytest.approx(0.1 * 0.1 * 0.8 * 12_000, abs=10)
    assert federation.labeled.all()
