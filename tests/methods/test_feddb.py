"""FedDB's labels and weights against its source."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rscfed_jax.config import Config, Hyper
from rscfed_jax.core.aggregation import Members
from rscfed_jax.methods.feddb import (
    balancing,
    balancing_weights,
    debiased,
    loss,
    mean_prediction,
    next_epoch,
    no_preference,
    predictions,
)
from tests.helpers import Echo, step_of
from tests.methods import reference


def hyper_of(**settings):
    return jax.tree.map(jnp.float64, Hyper.of(Config(method="feddb", **settings)))


def draw(seed, batch=8):
    return np.random.default_rng(seed).normal(size=(batch, 5)) * 3


@given(st.integers(0, 10**6))
def test_labels_are_those_of_predictions_divided_by_their_mean(seed):
    with jax.enable_x64(True):
        mean = reference.softmax(draw(seed + 1, 1))[0]
        pseudo = debiased(jnp.asarray(draw(seed)), jnp.asarray(mean), threshold=0.7)
        expected = reference.debiased(draw(seed), mean)
        np.testing.assert_array_equal(pseudo.labels, expected.argmax(axis=1))
        np.testing.assert_array_equal(pseudo.keep, expected.max(axis=1) >= 0.7)


def test_the_mean_prediction_is_that_of_the_sent_model_over_unlabeled_samples(x64):
    labels, bias = np.array([2, -1, -1, -1, -1, -1, -1, -1]), np.arange(5.0)
    _, step = step_of({"weak": draw(0)}, labels, valid=np.arange(8) < 6, bias=bias)
    verdict = predictions(Echo(), step, hyper_of())
    np.testing.assert_allclose(mean_prediction(verdict.statistics), reference.softmax(draw(0) + bias)[1:6].mean(axis=0))
    assert verdict.keep.all()
    nobody = {"predicted": jnp.zeros(5), "unlabeled": jnp.zeros(())}
    np.testing.assert_allclose(mean_prediction(nobody), 0.2)


def test_the_loss_and_the_change_of_the_mean_prediction_match_the_source(x64):
    hyper, bias = hyper_of(feddb_threshold=0.97), np.linspace(0, 1, 5)
    labels = np.array([2, -1, -1, -1, -1, -1, -1, -1])
    mean = reference.softmax(draw(3, 1))[0]
    statistics = {"predicted": jnp.asarray(mean) * 70, "unlabeled": jnp.float64(70)}
    tally = no_preference(Echo(), None)
    views = {"weak": draw(0), "strong": draw(1)}
    model, step = step_of(views, labels, bias=bias, statistics=statistics, tally=tally)
    total, told = loss(Echo(), model, step, hyper)
    p = reference.debiased(draw(0)[1:] + bias, mean)
    kept = p.max(axis=1) >= 0.97
    assert 0 < kept.sum() < 7
    unlabeled = reference.cross_entropies(draw(1)[1:][kept], p[kept].argmax(axis=1)).mean()
    np.testing.assert_allclose(told.losses.consistency, unlabeled, rtol=1e-10)
    np.testing.assert_allclose(total, unlabeled + reference.cross_entropies(draw(0)[:1], [2])[0], rtol=1e-10)
    seen = reference.softmax(draw(1)[1:][kept]).mean(axis=0)
    np.testing.assert_allclose(told.tally.mean, 0.5 * mean + 0.5 * seen, rtol=1e-10)
    np.testing.assert_allclose(mean + told.news["change"], told.tally.mean, rtol=1e-10)
    changes = told.news["change"]
    for tally, expected in (
        (told.tally, 0.5 * mean + 0.5 * seen),  # the same batch again in the same epoch
        (next_epoch(None, None, told.tally, hyper)[1], 0.25 * mean + 0.75 * seen),  # in the next one
    ):
        _, step = step_of(views, labels, bias=bias, statistics=statistics, tally=tally)
        again = loss(Echo(), model, step, hyper)[1]
        np.testing.assert_allclose(again.tally.mean, expected, rtol=1e-10)
    np.testing.assert_allclose(mean + changes + again.news["change"], again.tally.mean, rtol=1e-10)


def test_a_mean_prediction_without_kept_samples_stays(x64):
    statistics = {"predicted": jnp.arange(1.0, 6), "unlabeled": jnp.float64(15)}
    views, hyper = {"weak": draw(0), "strong": draw(1)}, hyper_of(feddb_threshold=1.0)
    model, step = step_of(views, np.full(8, -1), statistics=statistics, tally=no_preference(Echo(), None))
    told = loss(Echo(), model, step, hyper)[1]
    np.testing.assert_allclose(told.tally.mean, np.arange(1, 6) / 15)
    assert not told.news["change"].any()


once_compiled = jax.jit(balancing_weights)


@given(st.integers(0, 10**6))
def test_the_weights_match_the_sources_search(seed):
    with jax.enable_x64(True):
        preferences = reference.softmax(draw(seed, 6))
        counted = np.array([True, True, False, True, True, True])
        weights = once_compiled(jnp.asarray(preferences), jnp.asarray(counted), hyper_of().own)
        np.testing.assert_allclose(weights[counted], reference.balancing_weights(preferences[counted]), rtol=1e-9)
        assert weights[2] == 0
        broken = once_compiled(jnp.asarray(preferences).at[2].set(jnp.nan), jnp.asarray(counted), hyper_of().own)
        np.testing.assert_array_equal(broken, weights)


def test_clients_without_unlabeled_samples_keep_their_share(x64):
    news = {
        "predicted": jnp.asarray([[0.0, 0], [90, 10], [20, 80], [50, 50]]),
        "unlabeled": jnp.asarray([0.0, 100, 100, 100]),
        "change": jnp.zeros((4, 2)),
    }
    labeled, healthy = jnp.array([True, False, False, False]), jnp.array([True, True, True, False])
    members = Members(jnp.array([40, 100, 100, 100]), labeled, healthy, news)
    consensus = balancing({"params": {"w": jnp.arange(4.0)}}, members, hyper_of())
    expected = reference.balancing_weights(np.array([[0.9, 0.1], [0.2, 0.8]]))
    np.testing.assert_allclose(consensus.weights, [0.5, *(0.5 * expected), 0], rtol=1e-6)
