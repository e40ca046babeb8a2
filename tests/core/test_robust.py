"""Robust aggregators against NumPy in float64, what they promise as properties, and in rounds with attackers."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rscfed_jax.config import Config, Hyper
from rscfed_jax.config.settings import AGGREGATORS as NAMES
from rscfed_jax.core.aggregation import Consensus, by_data_amount, global_mean
from rscfed_jax.core.faults import ATTACKS, Faults, labeled_first
from rscfed_jax.core.robust import (
    ITERATIONS,
    SMOOTHING,
    geometric_median,
    krum,
    median,
    multi_krum,
    trimmed_mean,
)
from rscfed_jax.methods.registry import AGGREGATORS, METHODS
from tests import reference
from tests.helpers import Tiny, members_of, once, single, stacked

ROBUST = {function.__name__: function for function in (median, trimmed_mean, krum, multi_krum, geometric_median)}
HYPER = Hyper.of(Config(labeled_share=0.5))
SIZE = 8  # members of the subsets that are drawn: one shape, one program
agree = {name: jax.jit(function) for name, function in ROBUST.items()}
everyone = pytest.mark.parametrize("name", ROBUST)


def assuming(attackers):
    return HYPER._replace(assumed_attackers=float(attackers))


def expected(name, models, sizes, labeled, attackers):
    """The model and weights of the reference for models that are all healthy."""
    count = len(models)
    equal = [1 / count] * count
    if name == "median":
        return reference.median(models), equal
    if name == "trimmed_mean":
        return reference.trimmed_mean(models, min(attackers, (count - 1) // 2)), equal
    if name == "geometric_median":
        shares = reference.shares_by_data(sizes, labeled, HYPER.labeled_share)
        return reference.geometric_median(models, shares, ITERATIONS, SMOOTHING)
    chosen = 1 if name == "krum" else max(count - attackers, 1)
    weights = reference.multi_krum_weights(models, attackers, chosen)
    return reference.mean_model(models, weights), weights


@st.composite
def subsets(draw, least_healthy=1):
    """Models of two tensors, sizes, who is labeled, who is healthy."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    models = [[rng.normal(size=(3, 4)), rng.normal(size=5)] for _ in range(SIZE)]
    healthy = np.arange(SIZE) < draw(st.integers(least_healthy, SIZE))
    return models, rng.integers(1, 500, SIZE), rng.random(SIZE) < 0.3, rng.permutation(healthy)


def of_healthy(healthy, *lists):
    return [[thing for thing, counts in zip(things, healthy, strict=True) if counts] for things in lists]


def test_the_settings_name_every_aggregator():
    assert tuple(AGGREGATORS) == NAMES
    for name, function in ROBUST.items():
        assert AGGREGATORS[name](Config()) is function


@everyone
@given(subset=subsets(), attackers=st.integers(0, 4))
def test_matches_the_reference_over_healthy_members(name, subset, attackers):
    """With every number of healthy members: fewer than the assumed attackers need is no special case."""
    models, sizes, labeled, healthy = subset
    with jax.enable_x64(True):
        ours = agree[name](stacked(models), members_of(sizes, labeled, healthy), assuming(attackers))
        counted = of_healthy(healthy, models, sizes, labeled)
        model, weights = expected(name, *counted, attackers)
        chex.assert_trees_all_close(ours.model, single(model), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(np.asarray(ours.weights)[healthy], weights, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(np.asarray(ours.weights)[~healthy], 0)
    distances = [reference.l2_distance(one, model) for one in counted[0]]
    np.testing.assert_allclose(np.asarray(ours.distances)[healthy], distances, rtol=1e-9, atol=1e-12)


@everyone
@given(subset=subsets(), push=st.floats(-1e6, 1e6))
def test_a_member_that_is_not_healthy_changes_nothing(name, subset, push):
    models, sizes, labeled, healthy = subset
    others = [
        model if counts else [tensor + push for tensor in model] for model, counts in zip(models, healthy, strict=True)
    ]
    resized = np.where(healthy, sizes, sizes + 7)
    one, other = (
        agree[name](stacked(them), members_of(numbers, labeled, healthy), assuming(1))
        for them, numbers in ((models, sizes), (others, resized))
    )
    chex.assert_trees_all_equal(one._replace(distances=0), other._replace(distances=0))


@everyone
def test_with_nobody_healthy_there_are_no_weights_and_the_global_model_stays(name):
    models = stacked([[np.full((2, 2), float(i)), np.ones(3)] for i in range(4)])
    ours = agree[name](models, members_of(np.full(4, 10), np.zeros(4, bool), np.zeros(4, bool)), HYPER)
    np.testing.assert_array_equal(ours.weights, 0)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(ours))
    previous = jax.tree.map(lambda leaf: leaf[2], models)
    of_one_subset = Consensus(*jax.tree.map(lambda leaf: leaf[None], ours))
    chex.assert_trees_all_equal(global_mean(of_one_subset, previous), previous)


@everyone
@given(subset=subsets(least_healthy=5), seed=st.integers(0, 100))
def test_the_order_of_members_does_not_matter(name, subset, seed):
    models, sizes, labeled, healthy = subset
    order = np.random.default_rng(seed).permutation(SIZE)
    one = agree[name](stacked(models), members_of(sizes, labeled, healthy), assuming(1))
    other = agree[name](
        stacked([models[i] for i in order]), members_of(sizes[order], labeled[order], healthy[order]), assuming(1)
    )
    chex.assert_trees_all_close(one.model, other.model, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(one.weights[order], other.weights, atol=1e-5)


@everyone
@given(subset=subsets(least_healthy=SIZE), push=st.sampled_from([1e2, 1e6, 1e18, 1e30, -1e30]))
def test_outliers_of_any_size_move_the_model_by_a_bounded_amount(name, subset, push):
    """Two of eight, though their squared distances overflow: the model stays among the honest ones."""
    models, _, _, _ = subset
    honest = stacked(models[2:])["params"]
    models = [[tensor + push for tensor in model] if i < 2 else model for i, model in enumerate(models)]
    ours = agree[name](stacked(models), members_of(np.full(SIZE, 100), np.zeros(SIZE, bool)), assuming(2))
    room = 3 if name == "geometric_median" else 1e-5  # the others stay between honest values in each coordinate
    for key, leaf in ours.model["params"].items():
        assert (leaf <= honest[key].max(axis=0) + room).all()
        assert (leaf >= honest[key].min(axis=0) - room).all()
    if "krum" in name:
        np.testing.assert_array_equal(ours.weights[:2], 0)


@everyone
@given(subset=subsets())
def test_identical_models_agree_on_themselves_as_the_mean_does(name, subset):
    models, sizes, labeled, healthy = subset
    same, members = stacked([models[0]] * SIZE), members_of(sizes, labeled, healthy)
    ours = agree[name](same, members, assuming(1))
    chex.assert_trees_all_close(ours.model, by_data_amount(same, members, HYPER).model, rtol=1e-5, atol=1e-6)
    assert float(ours.weights.sum()) == pytest.approx(1, abs=1e-5)


@given(subset=subsets())
def test_a_mean_that_trims_nothing_is_the_plain_mean_and_one_that_trims_all_is_the_median(subset):
    models, sizes, labeled, healthy = subset
    members = members_of(sizes, labeled, healthy)
    [counted] = of_healthy(healthy, models)
    plain = single(reference.mean_model(counted, [1 / len(counted)] * len(counted)))
    ours = agree["trimmed_mean"](stacked(models), members, assuming(0))
    chex.assert_trees_all_close(ours.model, jax.tree.map(jnp.float32, plain), rtol=1e-5, atol=1e-6)
    middle = agree["trimmed_mean"](stacked(models), members, assuming(SIZE))
    chex.assert_trees_all_equal(middle, agree["median"](stacked(models), members, HYPER))


def test_krum_tells_near_models_apart_far_from_zero():
    """A matrix of products would lose these differences in the digits of the models."""
    models = np.float32(1000) + np.float32(2**-13) * np.array([[0, 0], [1, 0], [0, 1], [40, 0], [0, 40]], np.float32)
    ours = agree["krum"]({"params": {"x": models}}, members_of(np.ones(5), np.zeros(5, bool)), assuming(1))
    assert ours.weights.tolist() == [1, 0, 0, 0, 0]


def test_krums_distances_are_those_of_the_parameters_and_statistics_come_from_the_chosen_model():
    models = {
        "params": {"w": jnp.array([[0.0], [0.1], [0.2], [9.0], [0.3]])},
        "batch_stats": {"mean": jnp.array([[5.0], [1e5], [7.0], [0.0], [-1e5]])},
    }
    ours = agree["krum"](models, members_of(np.ones(5), np.zeros(5, bool)), assuming(1))
    assert int(jnp.argmax(ours.weights)) == 1
    assert float(ours.model["batch_stats"]["mean"][0]) == 1e5


def test_the_geometric_median_has_a_smaller_sum_of_distances_than_mean_and_median():
    rng = np.random.default_rng(5)
    models = stacked([[rng.normal(size=30) + 4 * (i == 0)] for i in range(SIZE)])
    members = members_of(rng.integers(50, 500, SIZE), np.zeros(SIZE, bool))
    shares = by_data_amount(models, members, HYPER).weights
    found = {name: run(models, members, HYPER) for name, run in agree.items()} | {
        "mean": by_data_amount(models, members, HYPER)
    }
    cost = {name: float(jnp.sum(shares * consensus.distances)) for name, consensus in found.items()}
    assert min(cost, key=cost.get) == "geometric_median"


@everyone
def test_models_keep_their_precision(name):
    models = {"params": {"w": jnp.arange(10, dtype=jnp.bfloat16).reshape(5, 2), "b": jnp.ones((5, 3))}}
    hyper = jax.tree.map(jnp.float32, HYPER)
    ours = agree[name](models, members_of(np.full(5, 3), np.zeros(5, bool)), hyper)
    assert ours.model["params"]["w"].dtype == jnp.bfloat16
    assert ours.model["params"]["b"].dtype == jnp.float32


@everyone
@pytest.mark.parametrize("method", ["rscfed", "fed_consist"])
def test_rounds_with_attackers_and_drop_outs_stay_finite(name, method):
    settings = {"method": method, "aggregator": name, "clients": 5, "subsets": 2, "subset_size": 5}
    tiny = Tiny(byzantine=1, attack="scale", drop_rate=0.2, **settings)
    faults = Faults(drops=True, attack=ATTACKS["scale"], order=labeled_first)
    algorithm = tiny.algorithm(method=METHODS[method](Config(**settings)), faults=faults)
    assert algorithm.method.aggregate is ROBUST[name]
    state = start = tiny.state(algorithm)
    for _ in range(2):
        state, report = once(algorithm, state, tiny.data, tiny.hyper)
        assert bool(report.finite)
        np.testing.assert_allclose(report.weights.sum(axis=1), 1, atol=1e-5)
        np.testing.assert_array_equal(report.weights[report.dropped], 0)
    assert jax.eval_shape(lambda: state) == jax.eval_shape(lambda: start)
    assert report.attackers[report.subsets == 4].all()
