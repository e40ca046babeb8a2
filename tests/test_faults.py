"""Simulated faults: who is hit, what is sent, and that no fault costs nothing."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rscfed_jax.config import Config
from rscfed_jax.faults import ATTACKS, NOISE, Faults
from rscfed_jax.history import DivergedError, History, check_finite
from rscfed_jax.methods.base import Method, by_data_amount
from rscfed_jax.metrics import Metrics
from rscfed_jax.repeat import REPEATS, retrain
from rscfed_jax.rounds import RoundReport, one_round
from tests.conftest import LABELED, Tiny, assert_trees_equal
from tests.test_rounds import FixedSubsets

once = jax.jit(one_round, static_argnames="algorithm")
SUBSETS = ((0, 1, 3), (3, 4, 2))


def algorithm_with(tiny, *, repeat=retrain, **faults):
    method = Method(FixedSubsets(SUBSETS), by_data_amount)
    return dataclasses.replace(tiny.algorithm(method=method, repeat=repeat), faults=Faults(**faults))


def test_a_config_without_faults_has_the_plain_program():
    assert Faults.of(Config()) == Faults()
    assert Faults.of(Config(drop_rate=0.1, byzantine=1, attack="scale")) == Faults(drops=True, attack=ATTACKS["scale"])


@pytest.mark.parametrize(("number", "expected"), [(0, []), (1, [3]), (2, [2, 3]), (3, [0, 2, 3]), (4, [0, 2, 3, 4])])
def test_attackers_are_the_last_unlabeled_clients(number, expected):
    tiny = Tiny()
    assert [client for client, has in enumerate(LABELED) if not has] == [0, 2, 3]
    mask = Faults(attack=ATTACKS["scale"]).attackers(tiny.data, tiny.hyper._replace(byzantine=jnp.float32(number)))
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


def test_zero_faults_in_a_program_with_faults_change_no_bit():
    tiny = Tiny()
    plain = algorithm_with(tiny)
    expected, report = once(plain, tiny.state(plain), tiny.data, tiny.hyper)
    able = algorithm_with(tiny, drops=True, attack=ATTACKS["noise"])
    after, with_faults = once(able, tiny.state(able), tiny.data, tiny.hyper)
    assert_trees_equal(after._replace(key=0), expected._replace(key=0))
    assert_trees_equal(with_faults, report)
    assert not with_faults.dropped.any()
    assert not with_faults.attackers.any()
    assert bool(report.finite)


@pytest.mark.parametrize("repeat", ["retrain", "share"])
def test_a_client_that_does_not_answer_has_no_weight_and_keeps_its_state(repeat):
    tiny = Tiny()
    algorithm = algorithm_with(tiny, repeat=REPEATS[repeat], drops=True)
    # A round in which client 3 answers in the first of its two subsets alone.
    before = tiny.state(algorithm)._replace(round=jnp.int32(18))
    hyper = tiny.hyper._replace(drop_rate=jnp.float32(0.4))
    after, report = once(algorithm, before, tiny.data, hyper)
    again, _ = once(algorithm, before, tiny.data, hyper)
    assert_trees_equal(after.model, again.model)
    dropped = np.asarray(report.dropped)
    assert dropped.tolist() == [[False] * 3, [repeat == "retrain", repeat == "share", False]]
    assert not report.broken.any()
    np.testing.assert_array_equal(np.asarray(report.weights)[dropped], 0)
    np.testing.assert_allclose(np.asarray(report.weights).sum(axis=1), 1, rtol=1e-6)
    answered = {client for row, gone in zip(SUBSETS, dropped, strict=True) for client in np.array(row)[~gone]}
    assert int(after.models_up) == (len(answered) if repeat == "share" else (~dropped).sum())
    for client in range(5):
        assert (int(after.clients.step[client]) > 0) == (client in answered)


def test_nobody_answers_and_the_global_model_stays():
    tiny = Tiny()
    algorithm = algorithm_with(tiny, drops=True)
    before = tiny.state(algorithm)
    after, report = once(algorithm, before, tiny.data, tiny.hyper._replace(drop_rate=jnp.float32(1)))
    assert report.dropped.all()
    assert_trees_equal(after.model, before.model)
    assert_trees_equal(after.clients, before.clients)


def test_only_attackers_send_something_else_and_their_weights_are_told():
    tiny = Tiny()
    plain = algorithm_with(tiny)
    honest, _ = once(plain, tiny.state(plain), tiny.data, tiny.hyper)
    algorithm = algorithm_with(tiny, attack=ATTACKS["scale"])
    state = tiny.state(algorithm)
    after, report = once(algorithm, state, tiny.data, tiny.hyper._replace(byzantine=jnp.float32(1)))
    np.testing.assert_array_equal(report.attackers, np.array(SUBSETS) == 3)
    assert (np.asarray(report.weights)[np.asarray(report.attackers)] > 0).all()
    # Their own state goes on as that of an honest client, and batch statistics are not touched.
    assert_trees_equal(after.clients, honest.clients)
    assert_trees_equal(after.model["batch_stats"], honest.model["batch_stats"])
    assert float(jnp.abs(after.model["params"]["l3"]["bias"] - honest.model["params"]["l3"]["bias"]).max()) > 0


def enormous(key, local, server):
    """Finite numbers, the sum of which is not."""
    return jax.tree.map(lambda leaf: jnp.full_like(leaf, 3e38), server)


def test_a_global_model_that_is_no_longer_finite_is_reported_with_its_clients():
    tiny = Tiny()
    algorithm = algorithm_with(tiny, attack=enormous)
    _, report = once(algorithm, tiny.state(algorithm), tiny.data, tiny.hyper._replace(byzantine=jnp.float32(5)))
    assert not report.broken.any()
    assert not report.finite
    history = History(best_model=None, clients=5)
    with pytest.raises(DivergedError, match=r"after round 7; the clients .*: 0, 1, 2, 3, 4"):
        history.add_rounds(jax.tree.map(lambda leaf: np.asarray(leaf)[None], report), first=7)


def test_a_warm_up_that_diverges_is_told_as_such():
    report = report_of(finite=[False], broken=np.zeros((1, 2, 2), bool), subsets=[[[0, 2], [2, 0]]])
    with pytest.raises(DivergedError, match="after a warm-up round; the clients that took part: 0, 2"):
        check_finite(report, first=-3)


def report_of(**changes):
    """The host's report of one round with subsets (0, 1) and (1, 2), in which client 1 is broken."""
    mask = np.zeros((1, 2, 2), bool)
    facts = {"subsets": [[[0, 1], [1, 2]]], "weights": [[[1, 0], [0, 1]]], "distances": mask * 1.0}
    facts |= {"labeled_loss": [0.5], "consistency_loss": [np.nan], "broken": [[[False, True], [True, False]]]}
    facts |= {"dropped": mask, "attackers": mask, "finite": [True]}
    return RoundReport(**{name: np.asarray(value) for name, value in (facts | changes).items()})


def test_the_record_of_an_evaluation_names_the_faults_since_the_last_one():
    history = History(best_model=None, clients=5)
    history.add_rounds(report_of(), first=1)
    attackers = np.array([[[True, False], [False, True]]])
    history.add_rounds(report_of(attackers=attackers, labeled_loss=[1.5], weights=[[[0.25, 0], [0, 0.75]]]), first=2)
    assert History.from_json(json.loads(json.dumps(history.to_json())), best_model=None, clients=5) == history
    record = history.add_evaluation(2, Metrics(0.5, 0.6, 0.7, 0.8), {"models_up": 4}, {})
    assert (record["broken_clients"], record["broken_ids"], record["dropped_clients"]) == (4, [1], 0)
    assert (record["labeled_loss"], record["consistency_loss"], record["attacker_weight"]) == (1.0, None, 0.5)
    assert record["client_weights"] == {"0": 0.625, "1": 0.0, "2": 0.875}
    assert history.pending == []
