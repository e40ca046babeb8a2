"""Balanced labels against NumPy, term by term."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rscfed_jax.config import Config, Hyper
from rscfed_jax.core.augment import centre, weak
from rscfed_jax.core.client import log_shares
from rscfed_jax.methods.balanced_labels import PRETENDED, LabeledEpochs, Tally, loss, nothing_seen
from rscfed_jax.methods.registry import method_of
from tests.helpers import Echo, step_of
from tests.methods import reference

LABELS = np.array([2, 0, 4, -1, -1, -1, -1, -1])
KEPT_SO_FAR = np.array([3.0, 12.0, 1.0, 40.0, 8.0])
EXPECTED_SO_FAR = np.array([9.0, 20.0, 6.0, 50.0, 15.0])


def tally():
    return Tally(jnp.asarray(EXPECTED_SO_FAR), jnp.asarray(KEPT_SO_FAR))


def hyper_of(**numbers):
    config = Config(method="balanced_labels", **{f"balanced_labels_{name}": value for name, value in numbers.items()})
    return jax.tree.map(jnp.float64, Hyper.of(config))


def logits(seed):
    return np.random.default_rng(seed).normal(size=(8, 5)) * 2


@pytest.mark.parametrize(("expected", "balanced"), [(True, True), (True, False), (False, True)])
def test_labels_and_losses_are_corrected_for_the_shares_of_classes(x64, expected, balanced):
    counts, bias = jnp.array([10, 1, 5, 0, 4]), np.arange(5.0) / 2
    views = {"weak": logits(0), "label": logits(1)}
    model, step = step_of(views, LABELS, bias=bias, tally=tally(), prior=log_shares(counts))
    found, told = loss(Echo(), model, step, hyper_of(threshold=0.6, expected=expected, balanced=balanced))
    shares = np.asarray(counts) / 20 + 1e-12
    said = logits(1)[3:] + bias
    asked = said + (np.log(EXPECTED_SO_FAR / 100) if expected else 0)
    prior = np.log(KEPT_SO_FAR / 64) if balanced else 0
    labeled, unlabeled = reference.fixmatch(
        logits(0)[:3] + np.log(shares), LABELS[:3], asked, logits(0)[3:] + prior, 0.6
    )
    np.testing.assert_allclose([told.losses.labeled, told.losses.consistency], [labeled, unlabeled], rtol=1e-12)
    np.testing.assert_allclose(found, labeled + unlabeled, rtol=1e-12)
    answer = reference.softmax(asked)
    kept = answer.argmax(axis=1)[answer.max(axis=1) >= 0.6]
    assert 0 < len(kept) < 5
    np.testing.assert_allclose(told.tally.kept, KEPT_SO_FAR + np.bincount(kept, minlength=5))
    np.testing.assert_allclose(told.tally.expected, EXPECTED_SO_FAR + reference.softmax(said).sum(axis=0))


def test_samples_that_are_not_there_are_not_counted(x64):
    views, valid = {"weak": logits(0), "label": logits(1)}, np.arange(8) < 6
    model, step = step_of(views, LABELS, valid=valid, tally=tally())
    told = loss(Echo(), model, step, hyper_of(threshold=0.0))[1]
    np.testing.assert_allclose([jnp.sum(part) for part in told.tally], [100 + 3, 64 + 3])


def test_classes_are_equal_before_the_first_step():
    np.testing.assert_allclose(nothing_seen(Echo(), {}), PRETENDED / 5)


def test_without_a_teacher_it_is_supervised(x64):
    model, step = step_of({"weak": logits(0), "label": logits(1)}, LABELS, teacher=False)
    found, told = loss(Echo(), model, step, hyper_of())
    np.testing.assert_allclose(found, reference.cross_entropies(logits(0)[:3], LABELS[:3]).mean(), rtol=1e-12)
    assert told.pseudo is None


def test_labels_are_those_of_the_middle_of_the_image_unless_asked_otherwise():
    for name, view in (("centre", centre), ("crop", weak)):
        config = Config(method="balanced_labels", balanced_labels_label_view=name)
        assert method_of(config).views == (("weak", weak), ("label", view))


def test_labeled_clients_have_epochs_of_their_own(x64):
    hyper = hyper_of(labeled_epochs=7)
    assert [int(LabeledEpochs(2)(jnp.bool_(labeled), hyper)) for labeled in (True, False)] == [7, 2]
    assert method_of(Config(method="balanced_labels", local_epochs=3)).epochs == LabeledEpochs(3)
