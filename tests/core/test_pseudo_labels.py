"""What methods with pseudo-labels share."""

import jax.numpy as jnp
import numpy as np

from rscfed_jax.core.objective import PseudoLabels
from rscfed_jax.core.pseudo_labels import confident, hidden, kept_loss, mean_over_hidden, weak_if_labeled
from tests.helpers import step_of
from tests.methods import reference

LABELS, VALID = np.array([1, -1, -1, -1, 0, -1]), np.arange(6) < 5


def draw(seed):
    return np.random.default_rng(seed).normal(size=(6, 5)) * 2


def test_a_label_is_the_most_probable_class_and_is_kept_from_the_threshold_on():
    logits = jnp.log(jnp.array([[0.7, 0.2, 0.1], [0.4, 0.5, 0.1], [0.25, 0.25, 0.5]]))
    pseudo = confident(logits, jnp.array([0.7 - 1e-6, 0.6, 0.4]))
    assert pseudo.labels.tolist() == [0, 1, 2]
    assert pseudo.keep.tolist() == [True, False, True]


def test_labels_that_are_not_kept_count_as_zero_and_padding_not_at_all(x64):
    _, step = step_of({"weak": draw(0)}, LABELS, valid=VALID)
    pseudo = PseudoLabels(jnp.array([0, 2, 3, 4, 1, 1]), jnp.array([True, True, False, True, True, True]))
    losses = reference.cross_entropies(draw(1), np.asarray(pseudo.labels))
    np.testing.assert_allclose(kept_loss(jnp.asarray(draw(1)), pseudo, step.batch), (losses[1] + losses[3]) / 3)
    np.testing.assert_array_equal(hidden(step.batch), [False, True, True, True, False, False])
    _, all_labeled = step_of({"weak": draw(0)}, np.zeros(6, int))
    assert mean_over_hidden(jnp.full(6, jnp.nan), all_labeled.batch) == 0


def test_a_labeled_sample_is_seen_in_its_weak_view_and_another_in_its_strong_one():
    _, step = step_of({"weak": np.zeros((6, 5)), "strong": np.ones((6, 5))}, LABELS)
    np.testing.assert_array_equal(weak_if_labeled(step.batch)[0, 0, 0], LABELS < 0)
