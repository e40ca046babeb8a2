"""SemiAnAgg's thresholds, similarities and weights against its source."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import rscfed_jax as rj
from rscfed_jax.config import Config, Hyper, SettingError
from rscfed_jax.core.aggregation import Members
from rscfed_jax.methods.registry import method_of
from rscfed_jax.methods.semianagg import Anchor, anchored_scores, by_similarity, cosine, flexible_thresholds, loss
from tests.helpers import ROOT, SMALL, Echo, TinyNetwork, step_of
from tests.methods import reference


def hyper_of(**own):
    settings = {f"semianagg_{name}": value for name, value in own.items()}
    return jax.tree.map(jnp.float64, Hyper.of(Config(method="semianagg", **settings)))


def draw(seed):
    return np.random.default_rng(seed).normal(size=(8, 5)) * 3


@given(st.lists(st.integers(0, 50), min_size=5, max_size=5), st.integers(0, 300))
def test_thresholds_grow_with_the_labels_a_class_has_had(counts, more):
    size = sum(counts) + more
    found = flexible_thresholds(jnp.asarray(counts, jnp.float32), jnp.int32(size), threshold=0.9)
    expected = [reference.flexible_threshold(counts, size, 0.9, label) for label in range(5)]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert float(found.max()) <= 0.9 + 1e-6


def test_the_loss_matches_the_source_and_tells_similarities(x64):
    labels, bias = np.array([1, 4, -1, -1, -1, -1, -1, -1]), np.linspace(0, 1, 5)
    counts, prior = np.array([6.0, 1, 0, 3, 2]), np.log([0.1, 0.2, 0.3, 0.3, 0.1])
    anchor = np.array([3.0, 0, 1, 0, 2])
    views = {"weak": draw(0), "strong": draw(1), "centre": draw(2)}
    more = {"tally": jnp.asarray(counts), "memory": {"params": jnp.asarray(anchor)}, "prior": jnp.asarray(prior)}
    model, step = step_of(views, labels, bias=bias, size=jnp.int32(20), **more)
    total, told = loss(Echo(), model, step, hyper_of())
    labeled = [reference.cross_entropies(draw(seed)[:2] + prior, labels[:2]).mean() for seed in (0, 1)]
    np.testing.assert_allclose(told.losses.labeled, sum(labeled) / 2, rtol=1e-10)
    p = reference.softmax(draw(0)[2:] + bias)
    said, unlabeled = p.argmax(axis=1), 0.0
    similar, number = np.zeros(5), np.zeros(5)
    for sample in range(6):
        limit = reference.flexible_threshold(counts, 20, 0.9, said[sample])
        unlabeled += (p[sample].max() >= limit) * reference.cross_entropies(draw(1)[2:], said)[sample]
        if p[sample].max() >= 0.9:
            one, other = draw(0)[2:][sample] + bias, draw(2)[2:][sample] + anchor
            similar[said[sample]] += one @ other / np.linalg.norm(one) / np.linalg.norm(other)
            number[said[sample]] += 1
    assert 0 < number.sum() < 6
    np.testing.assert_allclose(told.losses.consistency, unlabeled / 6, rtol=1e-10)
    np.testing.assert_allclose(total, sum(labeled) / 2 + unlabeled / 6, rtol=1e-10)
    np.testing.assert_allclose(told.news["similar"], similar, atol=1e-10)
    np.testing.assert_allclose(told.news["confident"], number)
    np.testing.assert_allclose(told.tally, counts + number)


def test_fixed_thresholds_are_a_switch(x64):
    views = {"weak": draw(0), "strong": draw(1), "centre": draw(2)}
    more = {"tally": jnp.zeros(5), "memory": {"params": jnp.zeros(5)}}
    model, step = step_of(views, np.full(8, -1), **more)
    assert loss(Echo(), model, step, hyper_of())[1].pseudo.keep.all()  # nothing was counted yet: all pass
    fixed = loss(Echo(), model, step, hyper_of(flexible=False))[1].pseudo.keep
    np.testing.assert_array_equal(fixed, reference.softmax(draw(0)).max(axis=1) >= 0.9)


def members_of(confident, healthy=(True,) * 4):
    rng = np.random.default_rng(0)
    number = np.array(confident, np.float64)
    news = {"similar": jnp.asarray(number * rng.uniform(0.1, 1, (4, 3))), "confident": jnp.asarray(number)}
    return Members(jnp.array([50, 10, 30, 60]), jnp.array([True, False, False, False]), jnp.array(healthy), news)


SEEN = [[0, 0, 0], [4, 0, 2], [1, 1, 1], [0, 3, 9]]


def test_scores_match_the_source(x64):
    members = members_of(SEEN)
    scores = anchored_scores(members.news, ~members.labeled)
    expected = reference.anchored_weights(*(np.asarray(members.news[name])[1:] for name in ("similar", "confident")))
    np.testing.assert_allclose(scores[1:] / scores.sum(), expected, rtol=1e-10)


COSINES = hnp.arrays(np.float32, (4, 3), elements=st.floats(-1, 1, width=32))


@given(COSINES, st.lists(st.booleans(), min_size=4, max_size=4))
def test_no_client_has_more_than_its_bound_whatever_the_cosines(cosines, counted):
    """Each class gives n clients n - 1 or more in all, and none of them more than 1."""
    news = {"similar": jnp.asarray(cosines * 2), "confident": jnp.full((4, 3), 2.0)}
    scores = anchored_scores(news, jnp.array(counted))
    assert float(scores.min()) >= 0
    assert float(scores.max()) * (sum(counted) - 1) <= float(scores.sum()) * (1 + 1e-5)
    seen = np.maximum(cosines, 0).astype(np.float64)[np.array(counted)]
    if sum(counted) > 1 and (seen.sum(axis=0) > 1e-30).all():
        expected = reference.anchored_weights(seen * 2, np.full(seen.shape, 2.0))
        np.testing.assert_allclose(scores[np.array(counted)] / scores.sum(), expected, atol=1e-5)


def test_labeled_clients_have_half_and_the_others_share_half_by_score(x64):
    models = {"params": {"w": jnp.arange(4.0)}}
    members = members_of(SEEN)
    expected = reference.anchored_weights(*(np.asarray(members.news[name])[1:] for name in ("similar", "confident")))
    np.testing.assert_allclose(by_similarity(models, members, hyper_of()).weights, [0.5, *(0.5 * expected)], rtol=1e-6)
    by_size = by_similarity(models, members, hyper_of(anchored=False)).weights
    np.testing.assert_allclose(by_size, [0.5, 0.05, 0.15, 0.3], rtol=1e-6)


def test_where_nobody_was_confident_the_labeled_mean_is_taken(x64):
    models = {"params": {"w": jnp.arange(4.0)}}
    np.testing.assert_allclose(by_similarity(models, members_of(np.zeros((4, 3))), hyper_of()).weights, [1, 0, 0, 0])
    alone = by_similarity(models, members_of(SEEN, (True, False, True, False)), hyper_of()).weights
    np.testing.assert_allclose(alone, [0.5, 0, 0.5, 0])
    without_labels = by_similarity(models, members_of(np.zeros((4, 3)), (False, True, True, True)), hyper_of()).weights
    np.testing.assert_allclose(without_labels.sum(), 1)


def test_the_anchor_is_the_same_random_network_whatever_the_model_is():
    one, other = (Anchor(16)(TinyNetwork(), model) for model in ({}, {"params": 3}))
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), one, other))
    np.testing.assert_allclose(cosine(jnp.array([[3.0, 4.0]]), jnp.array([[4.0, 3.0]])), [24 / 25], rtol=1e-6)


def test_its_defaults():
    config = Config(method="semianagg")
    assert (config.balanced_softmax, config.strong, config.labeled_share) == (True, "torchssl", 0.5)
    assert method_of(config).memory == Anchor(config.image_size)


def test_a_network_without_features_is_refused(tmp_path):
    network = "\n".join(
        line for line in (ROOT / "tests" / "tiny_network.py").read_text().splitlines() if "sow" not in line
    )
    (tmp_path / "mute.py").write_text(network)
    settings = SMALL | {"model": str(tmp_path / "mute.py"), "method": "semianagg"}
    with pytest.raises(SettingError, match="--model mute: gives no features, which the method semianagg needs"):
        rj.train(Config(**settings), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
