"""Who takes part in a round."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rscfed_jax.config import Config, SettingError
from rscfed_jax.config.registry import SAMPLES
from rscfed_jax.core import sampling
from rscfed_jax.core.sampling import SAMPLERS, AllClients, LabeledClients, RandomSubsets, UnlabeledClients, sampler_of
from tests.helpers import LABELED, Tiny, server_federation

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def data():
    return Tiny().data


def test_subsets_hold_distinct_clients_and_are_independent(data):
    keys = jax.vmap(jax.random.key)(jnp.arange(100))
    draws = np.asarray(jax.vmap(lambda key: RandomSubsets(3, 4)(key, data))(keys))
    assert draws.shape == (100, 3, 4)
    assert all(len(set(subset)) == 4 for subset in draws.reshape(-1, 4).tolist())
    assert (draws[:, 0] != draws[:, 1]).any()
    counts = np.bincount(draws.ravel(), minlength=5)
    np.testing.assert_allclose(counts / counts.sum(), 0.2, atol=0.03)


def test_a_subset_larger_than_the_federation_is_refused(data):
    with pytest.raises(SettingError, match="--subset-size 6: must be from 1 to --clients 5"):
        RandomSubsets(1, 6)(KEY, data)


def test_all_and_labeled_clients(data):
    assert AllClients()(KEY, data).tolist() == [[0, 1, 2, 3, 4]]
    assert LabeledClients()(KEY, data).tolist() == [[1, 4]]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sampler_knows_without_drawing_how_often_clients_take_part(data, name):
    sampler = SAMPLERS[name](Config(subsets=2, subset_size=3))
    slots = sampler.slots(np.array(LABELED))
    drawn = sampler(KEY, data)
    assert slots.sum() == pytest.approx(drawn.size)
    assert (slots[np.unique(drawn)] > 0).all()
    if name != "subsets":
        np.testing.assert_array_equal(slots, np.bincount(drawn.ravel(), minlength=5))


def test_every_word_that_a_methods_file_may_say_has_a_sampler():
    assert tuple(SAMPLERS) == SAMPLES


AT_SERVER = {"labels_at": "server", "clients": 4, "subsets": 2, "subset_size": 3}


@pytest.mark.parametrize(
    ("sampling", "second_phase", "members"),
    [
        ("subsets", False, 4),
        ("subsets", True, 3),
        ("all", False, [0, 1, 2, 3, 4]),
        ("all", True, [0, 1, 2, 3]),
        ("labeled", False, [4]),
        ("unlabeled", False, [0, 1, 2, 3]),
        ("unlabeled", True, [0, 1, 2, 3]),
    ],
)
def test_a_server_with_labels_joins_the_clients_unless_it_trains_after_them(sampling, second_phase, members):
    sampler = sampler_of(Config(**AT_SERVER, sampling=sampling), second_phase=second_phase)
    data = Tiny(server_federation()).data
    drawn = np.asarray(sampler(KEY, data))
    if sampling == "subsets":
        assert drawn.shape == (2, members)
        assert all(len(set(subset)) == members for subset in drawn.tolist())
        assert (drawn[:, :3] < 4).all()
        assert (drawn[:, 3:] == 4).all()
    else:
        assert drawn.tolist() == [members]
    slots = sampler.slots(np.asarray(data.labeled))
    assert slots.sum() == pytest.approx(drawn.size)
    assert slots[4] == (drawn == 4).sum()


def test_the_server_is_no_client_that_a_subset_could_hold():
    with pytest.raises(SettingError, match="--subset-size 5: must be from 1 to --clients 4"):
        RandomSubsets(1, 5, server_joins=True)(KEY, Tiny(server_federation()).data)


def test_unlabeled_clients_are_those_with_a_sample_that_has_no_label(data):
    assert UnlabeledClients()(KEY, data).tolist() == [[0, 2, 3]]
    np.testing.assert_array_equal(UnlabeledClients().slots(np.array(LABELED)), [1, 0, 1, 1, 0])
    np.testing.assert_array_equal(UnlabeledClients().slots(np.ones(3, bool)), 1)  # each holds some of both


def test_of_very_many_clients_subsets_are_drawn_without_sorting(monkeypatch):
    keys = jax.vmap(jax.random.key)(jnp.arange(300))
    draws = np.asarray(jax.vmap(lambda key: RandomSubsets(2, 5).draw(key, 1_000_000))(keys))
    assert draws.shape == (300, 2, 5)
    assert (draws >= 0).all()
    assert (draws < 1_000_000).all()
    assert draws.mean() == pytest.approx(500_000, rel=0.05)
    monkeypatch.setattr(sampling, "MOST_SORTED", 4)
    few = np.asarray(jax.vmap(lambda key: RandomSubsets(3, 4).draw(key, 6))(keys))
    assert all(len(set(subset)) == 4 for subset in few.reshape(-1, 4).tolist())
    np.testing.assert_allclose(np.bincount(few.ravel()) / few.size, 1 / 6, atol=0.02)
    assert (few[:, 0] != few[:, 1]).any()
