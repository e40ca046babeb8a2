"""DMA against the paper in float64, and its algebra as properties."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rscfed_jax.aggregation import (
    DISTANCES,
    Consensus,
    Members,
    dma_weights,
    global_mean,
    l2_distance,
    plain_consensus,
    weighted_mean,
)
from rscfed_jax.aggregation import data_shares as data_shares_eagerly
from rscfed_jax.aggregation import sub_consensus as sub_consensus_eagerly
from tests import reference

data_shares = jax.jit(data_shares_eagerly)
sub_consensus = jax.jit(sub_consensus_eagerly, static_argnames="distance")

PAPER = {"beta": 20.0, "beta_labeled": 20.0, "labeled_share": 0.5, "labeled_multiplier": 1.0}


def stacked(models):
    """A list of models (lists of tensors) as one stacked pytree."""
    return {"params": {str(t): jnp.asarray(np.stack([m[t] for m in models])) for t in range(len(models[0]))}}


def members_of(sizes, labeled, healthy=None):
    healthy = np.ones(len(sizes), bool) if healthy is None else np.asarray(healthy)
    return Members(jnp.asarray(sizes), jnp.asarray(labeled), jnp.asarray(healthy))


@st.composite
def subsets(draw, min_clients=2):
    """A subset: models of two tensors, sizes, who is labeled."""
    count = draw(st.sampled_from([size for size in (2, 4, 6) if size >= min_clients]))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    models = [[rng.normal(size=(3, 4)), rng.normal(size=5)] for _ in range(count)]
    sizes = rng.integers(1, 500, count)
    labeled = rng.random(count) < 0.3
    return models, sizes, labeled


@pytest.mark.parametrize("name", DISTANCES)
@given(subset=subsets())
def test_distances_match_the_paper(name, subset):
    models, _, _ = subset
    with jax.enable_x64(True):
        center = {"params": {str(t): jnp.asarray(models[0][t]) for t in range(2)}}
        ours = DISTANCES[name](stacked(models), center)
    expected = [getattr(reference, f"{name}_distance")(m, models[0]) for m in models]
    np.testing.assert_allclose(ours, expected, rtol=1e-12)


@pytest.mark.parametrize("name", DISTANCES)
@pytest.mark.parametrize(("share", "multiplier"), [(0.5, 1.0), (None, 6.0), (0.3, 2.0), (None, 1.0)])
@given(subset=subsets())
def test_sub_consensus_matches_the_paper(name, share, multiplier, subset):
    models, sizes, labeled = subset
    beta, beta_labeled = 30.0, 5.0
    with jax.enable_x64(True):
        ours = sub_consensus(
            stacked(models),
            members_of(sizes, labeled),
            beta=beta,
            beta_labeled=beta_labeled,
            labeled_share=-1.0 if share is None else share,
            labeled_multiplier=multiplier,
            distance=DISTANCES[name],
        )
    shares = reference.shares_by_data(sizes, labeled, share, multiplier)
    boost = [multiplier if is_labeled else 1.0 for is_labeled in labeled]
    used = beta_labeled if any(labeled) else beta
    distance = getattr(reference, f"{name}_distance")
    model, weights, distances = reference.sub_consensus(models, sizes, shares, used, distance, boost)
    np.testing.assert_allclose(ours.weights, weights, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(ours.distances, distances, rtol=1e-12)
    for t in range(2):
        np.testing.assert_allclose(ours.model["params"][str(t)], model[t], rtol=1e-9, atol=1e-12)


@given(subset=subsets(), share=st.none() | st.floats(0, 1), multiplier=st.floats(0.1, 200))
def test_shares_match_the_paper(subset, share, multiplier):
    _, sizes, labeled = subset
    with jax.enable_x64(True):
        ours = data_shares(
            members_of(sizes, labeled),
            labeled_share=-1.0 if share is None else share,
            labeled_multiplier=multiplier,
        )
    np.testing.assert_allclose(ours, reference.shares_by_data(sizes, labeled, share, multiplier), rtol=1e-9, atol=1e-12)
    assert np.asarray(ours).sum() == pytest.approx(1)


def test_published_labeled_client_has_about_89_percent():
    """The published SVHN split: 36 times the data amount, in subsets of five that hold the labeled client."""
    sizes = np.array([6621, 7578, 7972, 7781, 8311])
    shares = data_shares(members_of(sizes, np.arange(5) == 0), labeled_share=-1.0, labeled_multiplier=6.0)
    weights = dma_weights(jnp.zeros(5), sizes, shares * jnp.where(jnp.arange(5) == 0, 6.0, 1.0), beta=100.0)
    assert float(weights[0]) == pytest.approx(0.89, abs=0.02)


def test_weights_are_right_where_every_exponential_underflows():
    distances, sizes, shares = np.array([5.0, 5.1, 9.0]), np.array([10, 10, 10]), np.full(3, 1 / 3)
    with pytest.raises(ZeroDivisionError):
        reference.dma_weights(distances, sizes, shares, 10_000)
    weights = dma_weights(jnp.asarray(distances), sizes, shares, beta=10_000.0)
    np.testing.assert_allclose(weights, [1, 0, 0], atol=1e-6)
    tied = dma_weights(jnp.full(3, 5.0), sizes, shares, beta=10_000.0)
    np.testing.assert_allclose(tied, shares, rtol=1e-6)


@given(subset=subsets(), beta=st.sampled_from([0.0, 1.0, 100.0, 1e4]))
def test_weights_sum_to_one(subset, beta):
    models, sizes, labeled = subset
    ours = sub_consensus(stacked(models), members_of(sizes, labeled), **PAPER | {"beta": beta})
    assert float(ours.weights.sum()) == pytest.approx(1, abs=1e-5)
    assert (ours.weights >= 0).all()


@given(subset=subsets())
def test_identical_models_stay_put(subset):
    models, sizes, labeled = subset
    same = [models[0]] * len(models)
    ours = sub_consensus(stacked(same), members_of(sizes, labeled), **PAPER)
    for t in range(2):
        np.testing.assert_allclose(ours.model["params"][str(t)], models[0][t], rtol=1e-5, atol=1e-6)


def test_beta_is_that_of_a_subset_without_labels_where_the_labeled_client_is_silent():
    models = {"params": {"x": jnp.array([0.0, 0.1, 0.3, 0.9])}}
    numbers = {"beta": 20.0, "beta_labeled": 0.0, "labeled_share": 0.5, "labeled_multiplier": 1.0}
    healthy = jnp.arange(4) > 0
    weights = [
        sub_consensus(models, Members(jnp.full(4, 100), jnp.arange(4) == labeled, healthy), **numbers).weights
        for labeled in (0, 9)
    ]
    np.testing.assert_allclose(*weights)


@given(subset=subsets(), seed=st.integers(0, 1000))
def test_the_order_of_clients_does_not_matter(subset, seed):
    models, sizes, labeled = subset
    order = np.random.default_rng(seed).permutation(len(models))
    one = sub_consensus(stacked(models), members_of(sizes, labeled), **PAPER)
    other = sub_consensus(stacked([models[i] for i in order]), members_of(sizes[order], labeled[order]), **PAPER)
    np.testing.assert_allclose(one.weights[order], other.weights, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), one.model, other.model)


@given(subset=subsets(min_clients=4), push=st.floats(10, 1000))
def test_one_outlier_cannot_win(subset, push):
    """Among equals in size, a model far away has less weight than its share, and than every other client."""
    models, _, _ = subset
    count = len(models)
    models[0] = [tensor + push for tensor in models[0]]
    ours = sub_consensus(stacked(models), members_of(np.full(count, 100), np.zeros(count, bool)), **PAPER)
    assert float(ours.weights[0]) < 1 / count
    assert (ours.weights[0] < ours.weights[1:]).all()


def test_beta_zero_is_the_plain_average():
    rng = np.random.default_rng(0)
    models = [[rng.normal(size=(2, 3)), rng.normal(size=4)] for _ in range(4)]
    members = members_of(np.array([5, 10, 20, 1]), np.array([True, False, False, False]))
    reweighted = sub_consensus(stacked(models), members, **PAPER | {"beta": 0.0, "beta_labeled": 0.0})
    plain = plain_consensus(stacked(models), members, labeled_share=0.5, labeled_multiplier=1.0)
    np.testing.assert_allclose(reweighted.weights, plain.weights, atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), reweighted.model, plain.model)


def test_a_broken_client_has_no_weight_and_no_share():
    models = [[np.full((2, 2), float(i)), np.full(3, float(i))] for i in range(3)]
    ours = sub_consensus(
        stacked(models), members_of(np.array([10, 10, 10]), np.zeros(3, bool), [True, False, True]), **PAPER
    )
    assert float(ours.weights[1]) == 0
    np.testing.assert_allclose(ours.model["params"]["1"], 1.0, atol=1e-5)


def test_global_mean_is_plain_and_keeps_the_old_model_for_a_dead_subset():
    rng = np.random.default_rng(1)
    models = [[rng.normal(size=(2, 2)), rng.normal(size=3)] for _ in range(3)]
    previous = {"params": {str(t): jnp.zeros_like(models[0][t]) for t in range(2)}}
    alive = Consensus(stacked(models), jnp.full((3, 2), 0.5), jnp.zeros((3, 2)))
    expected = reference.global_mean(models)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6),
        global_mean(alive, previous),
        {"params": {str(t): expected[t] for t in range(2)}},
    )
    dead = alive._replace(weights=jnp.asarray([[0.5, 0.5], [0.0, 0.0], [0.5, 0.5]]))
    np.testing.assert_allclose(global_mean(dead, previous)["params"]["1"], (models[0][1] + models[2][1]) / 3, atol=1e-6)


def test_the_aggregation_compiles_once_for_every_number():
    models = stacked([[np.ones((2, 2)), np.ones(3)]] * 3)
    members = members_of(np.array([1, 2, 3]), np.array([True, False, False]))
    traces = []

    @jax.jit
    def aggregate(models, members, beta):
        traces.append(1)
        return sub_consensus_eagerly(models, members, **PAPER | {"beta": beta})

    for beta in (0.0, 1.0, 10_000.0):
        aggregate(models, members, beta)
    assert len(traces) == 1
    assert l2_distance(models, weighted_mean(models, jnp.full(3, 1 / 3))).shape == (3,)


def test_batch_statistics_count_in_the_sum_but_not_in_the_l2_distance():
    models = {"params": {"w": jnp.array([[3.0], [0.0]])}, "batch_stats": {"mean": jnp.array([[4.0], [0.0]])}}
    center = {"params": {"w": jnp.zeros(1)}, "batch_stats": {"mean": jnp.zeros(1)}}
    assert DISTANCES["l2"](models, center).tolist() == [3.0, 0.0]
    assert DISTANCES["sum"](models, center).tolist() == [7.0, 0.0]


def test_a_client_whose_distance_overflows_has_no_weight():
    sizes, shares = jnp.ones(3), jnp.full(3, 1 / 3)
    weights = dma_weights(jnp.array([1.0, jnp.inf, 1.0]), sizes, shares, beta=2.0)
    np.testing.assert_allclose(weights, [0.5, 0, 0.5])
    np.testing.assert_array_equal(dma_weights(jnp.full(3, jnp.inf), sizes, shares, beta=0.0), 0)
