"""Simulated faults: who is hit, what is sent, and that no fault costs nothing."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rscfed_jax.config import Config
from rscfed_jax.core.faults import ATTACKS, NOISE, Faults
from rscfed_jax.core.method import Method
from rscfed_jax.core.repeat import REPEATS
from tests.helpers import LABELED, FixedSubsets, Tiny, once, server_federation

SUBSETS = ((0, 1, 3), (3, 4, 2))
ABLE = Faults(drops=True, attack=ATTACKS["scale"])


@pytest.fixture(scope="module")
def tiny():
    return Tiny()


def one_round(tiny, faults, *, repeat="retrain", number=0, **hyper):
    """The states before and after a round, and its report."""
    algorithm = tiny.algorithm(method=Method(sample=FixedSubsets(SUBSETS)), repeat=REPEATS[repeat], faults=faults)
    before = tiny.state(algorithm)._replace(round=jnp.int32(number))
    numbers = tiny.hyper._replace(**{name: jnp.float32(value) for name, value in hyper.items()})
    return before, *once(algorithm, before, tiny.data, numbers)


@pytest.fixture(scope="module")
def plain(tiny):
    return one_round(tiny, Faults())


def test_a_config_without_faults_has_the_plain_program():
    assert Faults.of(Config()) == Faults()
    assert Faults.of(Config(drop_rate=0.1, byzantine=1, attack="scale")) == ABLE


@pytest.mark.parametrize(("number", "expected"), [(0, []), (1, [3]), (2, [2, 3]), (3, [0, 2, 3]), (4, [0, 2, 3, 4])])
def test_attackers_are_the_last_unlabeled_clients(tiny, number, expected):
    assert [client for client, has in enumerate(LABELED) if not has] == [0, 2, 3]
    mask = ABLE.attackers(tiny.data, tiny.hyper._replace(byzantine=jnp.float32(number)))
    assert np.flatnonzero(mask).tolist() == expected


def test_attacks_send_what_they_say():
    old = {"w": jnp.arange(50_000.0), "b": jnp.ones(3)}
    new = {"w": old["w"] + 0.5, "b": old["b"] - 2}
    key = jax.random.key(0)
    np.testing.assert_allclose(ATTACKS["sign-flip"](key, new, old)["b"], 3)
    np.testing.assert_allclose(ATTACKS["scale"](key, new, old)["w"], old["w"] + 5)
    noise = (ATTACKS["noise"](key, new, jax.tree.map(jnp.zeros_like, old)))["w"]
    assert float(noise.std()) == pytest.approx(NOISE, rel=0.02)
    assert abs(float(noise.mean())) < 0.02


def test_zero_faults_in_a_program_with_faults_change_no_bit(tiny, plain):
    _, expected, report = plain
    _, after, with_faults = one_round(tiny, ABLE)
    chex.assert_trees_all_equal(after._replace(key=0), expected._replace(key=0))
    chex.assert_trees_all_equal(with_faults, report)
    assert not with_faults.dropped.any()
    assert not with_faults.attackers.any()
    assert bool(report.finite)


@pytest.mark.parametrize("repeat", ["retrain", "share"])
def test_a_client_that_does_not_answer_has_no_weight_and_keeps_its_state(tiny, repeat):
    # A round in which client 3 answers in the first of its two subsets alone.
    _, after, report = one_round(tiny, ABLE, repeat=repeat, number=18, drop_rate=0.4)
    dropped = np.asarray(report.dropped)
    assert dropped.tolist() == [[False] * 3, [repeat == "retrain", repeat == "share", False]]
    assert not report.broken.any()
    np.testing.assert_array_equal(np.asarray(report.weights)[dropped], 0)
    np.testing.assert_allclose(np.asarray(report.weights).sum(axis=1), 1, rtol=1e-6)
    answered = {client for row, gone in zip(SUBSETS, dropped, strict=True) for client in np.array(row)[~gone]}
    assert int(after.models_up) == (len(answered) if repeat == "share" else (~dropped).sum())
    for client in range(5):
        assert (int(after.clients.step[client]) > 0) == (client in answered)


def test_nobody_answers_and_the_global_model_stays(tiny):
    before, after, report = one_round(tiny, ABLE, drop_rate=1)
    assert report.dropped.all()
    chex.assert_trees_all_equal(after.model, before.model)
    chex.assert_trees_all_equal(after.clients, before.clients)


def test_only_attackers_send_something_else_and_the_report_names_them(tiny, plain):
    _, honest, _ = plain
    _, after, report = one_round(tiny, ABLE, byzantine=1)
    np.testing.assert_array_equal(report.attackers, np.array(SUBSETS) == 3)
    assert (np.asarray(report.weights)[np.asarray(report.attackers)] > 0).all()
    # Their own state goes on as that of an honest client, and batch statistics are not touched.
    chex.assert_trees_all_equal(after.clients, honest.clients)
    chex.assert_trees_all_equal(after.model["batch_stats"], honest.model["batch_stats"])
    assert float(jnp.abs(after.model["params"]["l3"]["bias"] - honest.model["params"]["l3"]["bias"]).max()) > 0


def test_a_server_with_labels_always_answers_and_never_attacks():
    tiny = Tiny(server_federation())
    spared = Faults.of(Config(labels_at="server", clients=4, subset_size=2, drop_rate=1.0, byzantine=4))
    assert spared.server == 4
    ids = jnp.array([4, 0, 3, 4])
    answers = spared.answers(tiny.key, ids, jnp.zeros(4, int), tiny.hyper._replace(drop_rate=jnp.float32(1)))
    assert answers.tolist() == [True, False, False, True]
    attackers = spared.attackers(tiny.data, tiny.hyper._replace(byzantine=jnp.float32(4)))
    assert attackers.tolist() == [True] * 4 + [False]
