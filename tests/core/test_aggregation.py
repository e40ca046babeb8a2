"""DMA against the paper in float64, and its algebra as properties."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rscfed_jax.config import Config, Hyper
from rscfed_jax.core.aggregation import (
    DISTANCES,
    Consensus,
    SubConsensus,
    by_data_amount,
    data_shares,
    dma_weights,
    global_mean,
)
from tests import reference
from tests.helpers import members_of, single, stacked

HYPER = Hyper.of(Config(beta=20.0, labeled_share=0.5, labeled_multiplier=1.0))
shares_of = jax.jit(data_shares)
agree = {name: jax.jit(SubConsensus(distance)) for name, distance in DISTANCES.items()}


def weighing(share, multiplier, **more):
    """Numbers with this labeled share, None for none, and this multiplier."""
    return HYPER._replace(labeled_share=-1.0 if share is None else share, labeled_multiplier=multiplier, **more)


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
@pytest.mark.parametrize(("share", "multiplier"), [(0.5, 1.0), (None, 6.0), (0.3, 2.0), (None, 1.0)])
@given(subset=subsets())
def test_sub_consensus_matches_the_paper(name, share, multiplier, subset):
    models, sizes, labeled = subset
    beta, beta_labeled = 30.0, 5.0
    with jax.enable_x64(True):
        hyper = weighing(share, multiplier, beta=beta, beta_labeled=beta_labeled)
        ours = agree[name](stacked(models), members_of(sizes, labeled), hyper)
        shares = reference.shares_by_data(sizes, labeled, share, multiplier)
        boost = [multiplier if is_labeled else 1.0 for is_labeled in labeled]
        used = beta_labeled if any(labeled) else beta
        distance = getattr(reference, f"{name}_distance")
        model, weights, distances = reference.sub_consensus(models, sizes, shares, used, distance, boost)
        chex.assert_trees_all_close(
            ours, Consensus(single(model), jnp.asarray(weights), jnp.asarray(distances)), rtol=1e-9, atol=1e-12
        )


@given(subset=subsets(), share=st.none() | st.floats(0, 1), multiplier=st.floats(0.1, 200))
def test_shares_match_the_paper(subset, share, multiplier):
    _, sizes, labeled = subset
    with jax.enable_x64(True):
        ours = shares_of(members_of(sizes, labeled), weighing(share, multiplier))
    np.testing.assert_allclose(ours, reference.shares_by_data(sizes, labeled, share, multiplier), rtol=1e-9, atol=1e-12)
    assert np.asarray(ours).sum() == pytest.approx(1)


def test_published_labeled_client_has_about_89_percent():
    """The published SVHN split: 36 times the data amount, in subsets of five that hold the labeled client."""
    sizes = np.array([6621, 7578, 7972, 7781, 8311])
    same = {"params": {"x": jnp.zeros((5, 1))}}
    hyper = Hyper.of(Config(preset="published"))
    weights = agree["sum"](same, members_of(sizes, np.arange(5) == 0), hyper).weights
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
    ours = agree["l2"](stacked(models), members_of(sizes, labeled), HYPER._replace(beta=beta))
    assert float(ours.weights.sum()) == pytest.approx(1, abs=1e-5)
    assert (ours.weights >= 0).all()


@given(subset=subsets())
def test_identical_models_stay_put(subset):
    models, sizes, labeled = subset
    ours = agree["l2"](stacked([models[0]] * len(models)), members_of(sizes, labeled), HYPER)
    chex.assert_trees_all_close(ours.model, single(models[0]), rtol=1e-5, atol=1e-6)


def test_beta_is_that_of_a_subset_without_labels_where_the_labeled_client_is_silent():
    models = {"params": {"x": jnp.array([0.0, 0.1, 0.3, 0.9])}}
    healthy = np.arange(4) > 0
    weights = [
        agree["l2"](
            models, members_of(np.full(4, 100), np.arange(4) == labeled, healthy), HYPER._replace(beta_labeled=0.0)
        ).weights
        for labeled in (0, 9)
    ]
    np.testing.assert_allclose(*weights)


@given(subset=subsets(min_clients=4), push=st.floats(10, 1000))
def test_one_outlier_cannot_win(subset, push):
    """Among equals in size, a model far away has less weight than its share, and than every other client."""
    models, _, _ = subset
    count = len(models)
    models[0] = [tensor + push for tensor in models[0]]
    ours = agree["l2"](stacked(models), members_of(np.full(count, 100), np.zeros(count, bool)), HYPER)
    assert float(ours.weights[0]) < 1 / count
    assert (ours.weights[0] < ours.weights[1:]).all()


def test_beta_zero_is_the_plain_average():
    rng = np.random.default_rng(0)
    models = stacked([[rng.normal(size=(2, 3)), rng.normal(size=4)] for _ in range(4)])
    members = members_of(np.array([5, 10, 20, 1]), np.array([True, False, False, False]))
    reweighted = agree["l2"](models, members, HYPER._replace(beta=0.0, beta_labeled=0.0))
    chex.assert_trees_all_close(reweighted, by_data_amount(models, members, HYPER), atol=1e-6)


def test_a_broken_client_has_no_weight_and_no_share():
    models = stacked([[np.full((2, 2), float(i)), np.full(3, float(i))] for i in range(3)])
    ours = agree["l2"](models, members_of(np.full(3, 10), np.zeros(3, bool), [True, False, True]), HYPER)
    assert float(ours.weights[1]) == 0
    np.testing.assert_allclose(ours.model["params"]["1"], 1.0, atol=1e-5)


def test_global_mean_is_plain_and_keeps_the_old_model_for_a_dead_subset():
    rng = np.random.default_rng(1)
    models = [[rng.normal(size=(2, 2)), rng.normal(size=3)] for _ in range(3)]
    previous = jax.tree.map(jnp.zeros_like, single(models[0]))
    alive = Consensus(stacked(models), jnp.full((3, 2), 0.5), jnp.zeros((3, 2)))
    chex.assert_trees_all_close(global_mean(alive, previous), single(reference.global_mean(models)), atol=1e-6)
    dead = alive._replace(weights=jnp.asarray([[0.5, 0.5], [0.0, 0.0], [0.5, 0.5]]))
    np.testing.assert_allclose(global_mean(dead, previous)["params"]["1"], (models[0][1] + models[2][1]) / 3, atol=1e-6)


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
