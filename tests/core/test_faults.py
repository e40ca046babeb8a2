"""Simulated faults: who is hit, what is sent, and that no fault costs nothing."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rscfed_jax.config import SETTINGS, Config, Hyper
from rscfed_jax.core.faults import ATTACKS, ORDERS, Faults
from rscfed_jax.core.method import Method
from rscfed_jax.core.repeat import REPEATS
from tests.helpers import LABELED, SIZES, FixedSubsets, Tiny, once, server_federation

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
    assert Faults.of(Config(attackers="largest-first", attack="noise")) == Faults()
    assert Faults.of(Config(drop_rate=0.1, byzantine=1, attack="scale")) == ABLE


@pytest.mark.parametrize(
    ("order", "turns"),
    [("unlabeled-first", [3, 2, 0, 4, 1]), ("labeled-first", [4, 1, 3, 2, 0]), ("largest-first", [3, 1, 4, 2, 0])],
)
def test_attackers_come_in_the_order_that_is_asked_for(tiny, order, turns):
    assert (LABELED, SIZES) == ((False, True, False, False, True), (3, 17, 8, 25, 10))
    faults = Faults.of(Config(byzantine=1, attackers=order))
    for number in range(6):
        mask = faults.attackers(tiny.data, tiny.hyper._replace(byzantine=jnp.float32(number)))
        assert set(np.flatnonzero(mask).tolist()) == set(turns[:number])


def test_of_clients_of_one_size_the_last_attacks_first(tiny):
    alike = tiny.data._replace(sizes=jnp.full(5, 9))
    faults = Faults.of(Config(byzantine=1, attackers="largest-first"))
    assert np.flatnonzero(faults.attackers(alike, tiny.hyper._replace(byzantine=2.0))).tolist() == [3, 4]


def test_the_settings_name_every_attack_and_order():
    assert SETTINGS["attack"].kind.metavar == "|".join(ATTACKS)
    assert SETTINGS["attackers"].kind.metavar == "|".join(ORDERS)


@pytest.mark.parametrize(("attack", "strength"), [("noise", 1), ("sign-flip", 1), ("scale", 10)])
def test_the_strength_of_an_attack_is_its_own_unless_given(attack, strength):
    assert Hyper.of(Config(attack=attack)).attack_scale == strength
    assert Hyper.of(Config(attack=attack, attack_scale=0.5)).attack_scale == 0.5
    assert Config(attack="scale").replace(attack=attack).attack_scale == strength


def test_attacks_send_what_they_say():
    old = {"w": jnp.arange(50_000.0), "b": jnp.ones(3)}
    new = {"w": old["w"] + 0.5, "b": old["b"] - 2}
    key = jax.random.key(0)
    np.testing.assert_allclose(ATTACKS["sign-flip"](key, new, old, 1.0)["b"], 3)
    np.testing.assert_allclose(ATTACKS["sign-flip"](key, new, old, 4.0)["b"], 9)
    np.testing.assert_allclose(ATTACKS["scale"](key, new, old, 10.0)["w"], old["w"] + 5)
    noise = (ATTACKS["noise"](key, new, jax.tree.map(jnp.zeros_like, old), 0.5))["w"]
    assert float(noise.std()) == pytest.approx(0.5, rel=0.02)
    assert abs(float(noise.mean())) < 0.02


@pytest.fixture(scope="module")
def faultless(tiny):
    return one_round(tiny, ABLE)


def test_zero_faults_in_a_program_with_faults_change_nothing_beyond_rounding(plain, faultless):
    _, expected, report = plain
    _, after, with_faults = faultless
    close = {"rtol": 1e-5, "atol": 1e-7}
    chex.assert_trees_all_close(after._replace(key=0), expected._replace(key=0), **close)
    chex.assert_trees_all_close(with_faults, report, **close)
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


def test_only_attackers_send_something_else_and_the_report_names_them(tiny, faultless):
    _, honest, _ = faultless
    _, after, report = one_round(tiny, ABLE, byzantine=1, attack_scale=10)
    np.testing.assert_array_equal(report.attackers, np.array(SUBSETS) == 3)
    assert (np.asarray(report.weights)[np.asarray(report.attackers)] > 0).all()
    # Their own state goes on as that of an honest client, and batch statistics are not touched.
    chex.assert_trees_all_equal(after.clients, honest.clients)
    chex.assert_trees_all_equal(after.model["batch_stats"], honest.model["batch_stats"])
    assert float(jnp.abs(after.model["params"]["l3"]["bias"] - honest.model["params"]["l3"]["bias"]).max()) > 0


@pytest.mark.parametrize("order", ORDERS)
def test_a_server_with_labels_always_answers_and_never_attacks(order):
    tiny = Tiny(server_federation())
    settings = {"labels_at": "server", "clients": 4, "subset_size": 2}
    spared = Faults.of(Config(**settings, drop_rate=1.0, byzantine=4, attackers=order))
    assert spared.server == 4
    ids = jnp.array([4, 0, 3, 4])
    answers = spared.answers(tiny.key, ids, jnp.zeros(4, int), tiny.hyper._replace(drop_rate=jnp.float32(1)))
    assert answers.tolist() == [True, False, False, True]
    for number in (1, 4):
        attackers = spared.attackers(tiny.data, tiny.hyper._replace(byzantine=jnp.float32(number)))
        assert (int(attackers.sum()), bool(attackers[4])) == (number, False)
