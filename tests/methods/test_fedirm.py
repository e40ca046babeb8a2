"""FedIRM: relation matrices, their distance, and its round."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rscfed_jax.config import Config, Hyper, SettingError
from rscfed_jax.core.aggregation import Members, as_equals
from rscfed_jax.core.client_axis import ClientAxis
from rscfed_jax.core.objective import Batch, Step
from rscfed_jax.methods.fedirm import (
    labeled_mean,
    ramp,
    relation_loss,
    relation_matrix,
    smoothed_cross_entropy,
    symmetric_divergence,
)
from rscfed_jax.methods.registry import METHODS
from rscfed_jax.runner.build import make_algorithms
from tests import reference
from tests.helpers import CLASSES, Lookup, Tiny, once


def draw(seed, batch=9, classes=5):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(batch, classes)) * 2, rng.integers(0, classes, batch)


@given(st.integers(0, 10**6))
def test_the_relation_matrix_and_its_distance_match_the_reference(seed):
    with jax.enable_x64(True):
        logits, labels = draw(seed)
        ours = relation_matrix(jnp.asarray(logits), jnp.asarray(labels), jnp.ones(9, bool), temperature=2.0)
        expected = reference.relation_matrix(logits, labels, 5)
        np.testing.assert_allclose(ours, expected, atol=1e-12)
        other = reference.relation_matrix(*draw(seed + 1), 5)
        distance = symmetric_divergence(ours, jnp.asarray(other))
        np.testing.assert_allclose(distance, reference.relation_distance(expected, other), atol=1e-12)
        assert distance >= 0
        np.testing.assert_allclose(symmetric_divergence(ours, ours), 0, atol=1e-15)


def test_distant_logits_leave_loss_and_gradient_finite():
    def distance(logits):
        ours = relation_matrix(logits, jnp.arange(5), jnp.ones(5, bool), temperature=2.0)
        return symmetric_divergence(ours, jax.lax.stop_gradient(ours[::-1]))

    value, slope = jax.value_and_grad(distance)(jnp.eye(5) * 1000)
    assert jnp.isfinite(value)
    assert jnp.isfinite(slope).all()


def test_an_absent_class_has_a_uniform_row_and_masked_samples_do_not_count():
    logits, _ = draw(0)
    matrix = relation_matrix(jnp.asarray(logits), jnp.zeros(9, int), jnp.arange(9) < 4, temperature=2.0)
    np.testing.assert_allclose(matrix[1:], 0.2, atol=1e-6)
    np.testing.assert_allclose(matrix[0], reference.relation_matrix(logits[:4], [0] * 4, 5)[0], atol=1e-6)


def test_the_ramp_grows_to_one_in_thirty_rounds():
    rounds = jnp.array([0.0, 21.0, 30.0, 99.0])
    np.testing.assert_allclose(ramp(rounds, rounds=30.0), [np.exp(-5), np.exp(-0.45), 1, 1], rtol=1e-5)


def step_of(student, teacher, labels, *, round_, matrix):
    """A model whose logits are those two, and a step in which it has them as its views."""
    model = {"params": jnp.stack([jnp.asarray(student), jnp.asarray(teacher)])}
    batch = Batch({"student": 0, "teacher": 1}, jnp.asarray(labels), jnp.ones(9, bool))
    return model, Step(None, batch, model, model, jnp.int32(round_), jnp.asarray(matrix), None, None)


@pytest.mark.parametrize("round_", [0, 5, 40])
def test_the_unlabeled_loss_matches_the_reference(x64, round_):
    student, teacher = draw(1)[0], draw(2)[0]
    server = reference.relation_matrix(*draw(3), 5)
    hyper = jax.tree.map(jnp.float64, Hyper.of(Config(method="fedirm", warmup_rounds=3)))
    model, step = step_of(student, teacher, np.full(9, -1), round_=round_, matrix=server)
    loss, told = relation_loss(Lookup(), model, step, hyper)
    expected = reference.fedirm_unlabeled_loss(student, teacher, server, round_ + 3)
    np.testing.assert_allclose(loss, expected, rtol=1e-10)
    np.testing.assert_allclose(told.news["relations"], 0.2)  # nothing is known of classes without labels


def test_its_numbers_are_arguments_of_the_program_not_constants_of_it():
    model, step = step_of(draw(1)[0], draw(2)[0], np.full(9, -1), round_=40, matrix=np.full((5, 5), 0.2))
    batch, rest = step.batch, step._replace(batch=None)
    chex.clear_trace_counter()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def loss(model, labels, rest, hyper):
        return relation_loss(Lookup(), model, rest._replace(batch=batch._replace(labels=labels)), hyper)[0]

    def with_(**own):
        return float(loss(model, batch.labels, rest, Hyper.of(Config(method="fedirm", **own))))

    assert with_(fedirm_factor=30) == pytest.approx(2 * with_(), rel=1e-5)
    for changed in ({"fedirm_temperature": 1}, {"fedirm_confidence": 0.9}, {"fedirm_entropy": 0.1}):
        assert with_(**changed) != pytest.approx(with_(), rel=1e-3)
    assert with_(fedirm_ramp_rounds=100) < with_()


def test_labeled_samples_give_smoothed_cross_entropy_on_both_views_and_news(x64):
    views = [draw(seed)[0] for seed in (1, 2)]
    labels = draw(1)[1]
    hyper = jax.tree.map(jnp.float64, Hyper.of(Config(method="fedirm")))
    model, step = step_of(*views, labels, round_=0, matrix=np.full((5, 5), 0.2))
    loss, told = relation_loss(Lookup(), model, step._replace(teacher=None), hyper)
    target = 0.9 * np.eye(5)[labels] + 0.02
    logs = [view - np.log(np.exp(view).sum(axis=1, keepdims=True)) for view in views]
    np.testing.assert_allclose(loss, -sum((target * log).sum(axis=1).mean() for log in logs), rtol=1e-10)
    np.testing.assert_allclose(told.news["relations"], reference.relation_matrix(views[0], labels, 5), atol=1e-12)
    nothing = smoothed_cross_entropy(jnp.asarray(views[0]), jnp.asarray(labels), jnp.zeros(9, bool), smoothing=0.1)
    assert nothing == 0


def test_the_server_remembers_the_labeled_clients_mean():
    news = {"relations": jnp.arange(4.0)[None, :, None, None] * jnp.ones((1, 4, 2, 2))}
    members = Members(
        jnp.ones((1, 4)), jnp.array([[True, True, False, True]]), jnp.array([[True, True, True, False]]), news
    )
    np.testing.assert_array_equal(labeled_mean(jnp.zeros((2, 2)), members), np.full((2, 2), 0.5))
    nobody = members._replace(healthy=jnp.zeros((1, 4), bool))
    np.testing.assert_array_equal(labeled_mean(jnp.full((2, 2), 7.0), nobody), np.full((2, 2), 7.0))


@pytest.mark.parametrize(("share", "expected"), [("off", [0.25] * 4), (0.5, [0.5, 0.5 / 3, 0.5 / 3, 0.5 / 3])])
def test_models_count_equally_whatever_their_data_amount(share, expected):
    members = Members(jnp.array([1, 20, 300, 4]), jnp.array([True, False, False, False]), jnp.ones(4, bool))
    hyper = jax.tree.map(jnp.float32, Hyper.of(Config(method="fedirm", labeled_share=share)))
    consensus = as_equals({"params": {"w": jnp.arange(4.0)}}, members, hyper)
    np.testing.assert_allclose(consensus.weights, expected, rtol=1e-6)


def test_models_count_equally_in_the_warm_up_too():
    config = Config(method="fedirm")
    _, warmup = make_algorithms(config, None, METHODS["fedirm"](config), ClientAxis(), any_unlabeled=True)
    assert warmup.method.aggregate is as_equals


def test_a_round_hands_on_the_matrix_of_its_labeled_clients():
    tiny = Tiny(method="fedirm")
    algorithm = tiny.algorithm(method=METHODS["fedirm"](Config(method="fedirm")))
    start = tiny.state(algorithm)
    np.testing.assert_allclose(start.memory, 1 / CLASSES)
    state, report = once(algorithm, start, tiny.data, tiny.hyper)
    np.testing.assert_allclose(state.memory.sum(axis=1), 1, rtol=1e-5)
    assert np.abs(np.asarray(state.memory) - 1 / CLASSES).max() > 1e-3
    assert report.subsets.tolist() == [[0, 1, 2, 3, 4]]
    without = tiny.hyper._replace(lr_unlabeled=jnp.float32(jnp.nan))  # which breaks the other clients
    other, report = once(algorithm, start, tiny.data, without)
    assert int(report.broken.sum()) == 3
    np.testing.assert_array_equal(other.memory, state.memory)


def test_its_own_numbers_are_the_defaults_and_partly_labeled_clients_are_refused():
    config = Config(method="fedirm")
    assert (config.ema, config.warmup_rounds, config.labeled_share) == (0.99, 21, 0.5)
    assert Config(method="fedirm", warmup_rounds=2).warmup_rounds == 2
    with pytest.raises(SettingError, match="--method fedirm: needs clients with all their labels"):
        Config(method="fedirm", labeled_fraction=0.1)


def test_no_trained_parameter_depends_on_running_statistics():
    """Neither student nor teacher uses them: the teacher normalises with the batch."""
    settings = {"method": "fedirm", "fedirm_confidence": 0.0}
    tiny = Tiny(**settings)
    algorithm = tiny.algorithm(method=METHODS["fedirm"](Config(**settings)))
    state = tiny.state(algorithm)
    moved = state.model | {"batch_stats": jax.tree.map(lambda leaf: leaf + 5, state.model["batch_stats"])}
    ours, report = once(algorithm, state, tiny.data, tiny.hyper)
    other, _ = once(algorithm, state._replace(model=moved), tiny.data, tiny.hyper)
    assert report.consistency_loss > 0
    chex.assert_trees_all_equal(ours.model["params"], other.model["params"])
