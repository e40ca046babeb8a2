"""A round: what clients keep, what travels, what is told, and that no hidden label is anywhere."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rscfed_jax.core.method import Method
from rscfed_jax.core.round import count_distinct
from rscfed_jax.runner.build import to_device
from tests.helpers import CLASSES, FixedSubsets, Tiny, once, ragged_federation

SUBSETS = ((0, 1, 3), (3, 4, 2))


@pytest.fixture(scope="module")
def tiny():
    return Tiny()


@pytest.fixture(scope="module")
def algorithm(tiny):
    return tiny.algorithm(method=Method(sample=FixedSubsets(SUBSETS)))


@pytest.fixture(scope="module")
def first(tiny, algorithm):
    """The states before and after the first round, and its report."""
    before = tiny.state(algorithm)
    return before, *once(algorithm, before, tiny.data, tiny.hyper)


def relabeled(federation, which):
    """The federation with other labels for these samples."""
    labels = federation.dataset.train_labels.copy()
    labels[which] = (labels[which] + 1) % CLASSES
    return federation._replace(dataset=federation.dataset._replace(train_labels=labels))


def test_hidden_labels_are_not_in_what_a_round_is_a_function_of():
    """A round sees its arguments alone, so a leak would have to be in the data, which these labels do not change.

    All but the truth, that is; what it may do is in test_truth.py.
    """
    federation = ragged_federation()
    hidden = np.concatenate(federation.samples)[~np.concatenate(federation.label_visible)]
    changed = relabeled(federation, hidden)
    seen = [to_device(each, image_size=16)[0]._replace(truth=None) for each in (federation, changed)]
    chex.assert_trees_all_equal(*seen)


def test_visible_labels_do_influence_training(tiny, algorithm, first):
    """The counterpart: the labels that training may see reach it."""
    _, expected, _ = first
    seen = np.concatenate(tiny.federation.samples)[np.concatenate(tiny.federation.label_visible)]
    data, _ = to_device(relabeled(tiny.federation, seen), image_size=16)
    state, _ = once(algorithm, tiny.state(algorithm), data, tiny.hyper)
    assert float(jnp.abs(state.model["params"]["l3"]["bias"] - expected.model["params"]["l3"]["bias"]).max()) > 1e-4


def test_a_round_counts_itself_and_the_models_that_travel(first):
    before, after, report = first
    assert (int(before.round), int(after.round)) == (0, 1)
    assert report.subsets.tolist() == [list(row) for row in SUBSETS]
    assert (int(after.models_down), int(after.models_up)) == (5, 6)  # to each client once, from each slot
    assert int(count_distinct(jnp.array([[0, 1, 1], [2**31 - 1, 0, 1]]), 5)) == 2


def test_batch_statistics_travel_with_the_parameters_and_teachers_keep_theirs(first):
    before, after, report = first
    assert not report.broken.any()
    start, now = (state.model["batch_stats"]["BatchNorm_0"]["mean"] for state in (before, after))
    assert float(jnp.abs(now - start).max()) > 1e-3
    np.testing.assert_array_equal(after.clients.teacher["batch_stats"]["BatchNorm_0"]["mean"][0], start)


def test_losses_are_those_of_healthy_clients_of_their_kind(tiny, algorithm, first):
    _, _, report = first
    assert float(report.labeled_loss) > 0
    assert float(report.consistency_loss) > 0
    federation = ragged_federation(labeled=(True,) * 5)
    everyone, _ = to_device(federation._replace(dataset=tiny.federation.dataset), image_size=16)
    labeled_ids = tiny.data.labeled_ids  # of the shape that the program has
    _, report = once(algorithm, tiny.state(algorithm), everyone._replace(labeled_ids=labeled_ids), tiny.hyper)
    assert float(report.labeled_loss) > 0
    assert np.isnan(report.consistency_loss)


def with_broken_teachers(state, clients):
    """Teachers that are not finite, of clients that have trained before."""
    ids = jnp.array(clients)
    teacher = jax.tree.map(lambda leaf: leaf.at[ids].set(jnp.nan), state.clients.teacher)
    return state._replace(clients=state.clients._replace(teacher=teacher, step=state.clients.step.at[ids].set(1)))


def test_a_broken_client_is_replaced_and_keeps_its_earlier_state(tiny, algorithm):
    state = with_broken_teachers(tiny.state(algorithm), [3])
    after, report = once(algorithm, state, tiny.data, tiny.hyper)
    np.testing.assert_array_equal(report.broken, np.array(SUBSETS) == 3)
    np.testing.assert_array_equal(np.asarray(report.weights)[np.asarray(report.broken)], 0)
    chex.assert_tree_all_finite(after.model)
    assert bool(report.finite)
    assert np.isfinite(report.consistency_loss)  # that of the others
    assert int(after.clients.step[3]) == 1
    assert float(jnp.abs(after.clients.optimizer[2][0].trace["l3"]["bias"][3]).sum()) == 0
    assert int(after.clients.step[0]) > 0


def test_all_broken_clients_leave_the_global_model_alone(tiny, algorithm):
    state = with_broken_teachers(tiny.state(algorithm), [0, 1, 2, 3, 4])
    # A labeled client does not need its teacher: its learning rate breaks it.
    after, report = once(algorithm, state, tiny.data, tiny.hyper._replace(lr_labeled=jnp.float32(jnp.nan)))
    assert report.broken.all()
    chex.assert_trees_all_equal(after.model, state.model)


def test_a_global_model_that_is_no_longer_finite_is_reported(tiny, algorithm):
    """The models of both subsets are finite; their sum is not."""
    state = tiny.state(algorithm)
    head = state.model["params"]["l3"]
    huge = {**head, "bias": jnp.full_like(head["bias"], 3e38)}
    state = state._replace(model={**state.model, "params": {**state.model["params"], "l3": huge}})
    _, report = once(algorithm, state, tiny.data, tiny.hyper._replace(weight_decay=jnp.float32(0)))
    assert not report.broken.any()
    assert not report.finite


@pytest.mark.parametrize(("rule", "moved"), [("initial", 0), ("first-selected", 1)])
def test_teachers_start_from_the_initial_or_the_first_selected_model(algorithm, rule, moved):
    tiny = Tiny(teacher_init=rule, ema=1.0, ema_warmup=False)  # a teacher that never moves
    state = tiny.state(algorithm)
    state = state._replace(model=jax.tree.map(lambda leaf: leaf + 1, state.model))
    after, _ = once(algorithm, state, tiny.data, tiny.hyper)
    start = after.clients.teacher["params"]["l3"]["bias"][3] - state.initial_model["params"]["l3"]["bias"]
    np.testing.assert_allclose(start, moved, atol=1e-6)


def test_clients_that_keep_nothing_begin_anew_each_round(tiny, first):
    """Their first round is that of clients that keep their state, and nothing is left of it but the model."""
    _, expected, _ = first
    algorithm = tiny.algorithm(method=Method(sample=FixedSubsets(SUBSETS)), keeps_clients=False)
    state = tiny.state(algorithm)
    assert state.clients is None
    after, _ = once(algorithm, state, tiny.data, tiny.hyper)
    assert after.clients is None
    chex.assert_trees_all_close(after.model, expected.model, atol=1e-5)
