"""FixMatch's loss against its source."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rscfed_jax.config import Config, Hyper
from rscfed_jax.methods.fixmatch import FixMatchLoss
from rscfed_jax.methods.registry import method_of
from tests.helpers import Echo, step_of
from tests.methods import reference

LABELS = np.array([2, 0, 4, -1, -1, -1, -1, -1])


@pytest.fixture
def hyper(x64):
    return jax.tree.map(jnp.float64, Hyper.of(Config(method="fixmatch", fixmatch_threshold=0.6)))


def logits(seed):
    return np.random.default_rng(seed).normal(size=(8, 5)) * 2


@pytest.mark.parametrize("own", [False, True])
def test_the_loss_matches_the_source(hyper, own):
    bias = np.arange(5.0)
    model, step = step_of({"weak": logits(0), "strong": logits(1)}, LABELS, bias=bias)
    loss, told = FixMatchLoss(own_labels=own)(Echo(), model, step, hyper)
    on_weak = logits(0)[3:] + (0 if own else bias)
    labeled, unlabeled = reference.fixmatch(logits(0)[:3], LABELS[:3], on_weak, logits(1)[3:], 0.6)
    np.testing.assert_allclose([told.losses.labeled, told.losses.consistency], [labeled, unlabeled], rtol=1e-12)
    np.testing.assert_allclose(loss, labeled + unlabeled, rtol=1e-12)
    sure = reference.softmax(on_weak).max(axis=1) >= 0.6
    assert 0 < sure.sum() < 5
    np.testing.assert_array_equal(told.pseudo.keep[3:], sure)
    np.testing.assert_array_equal(told.pseudo.labels[3:], on_weak.argmax(axis=1))


def test_no_gradient_goes_through_the_labels(hyper):
    def loss(bias, on_weak):
        _, now = step_of({"weak": on_weak, "strong": logits(1)}, np.full(8, -1))
        return FixMatchLoss(own_labels=True)(Echo(), {"params": bias}, now, hyper)[0]

    assert jnp.abs(jax.grad(loss, argnums=1)(jnp.zeros(5), jnp.asarray(logits(0)))).max() == 0
    assert jnp.abs(jax.grad(loss)(jnp.zeros(5), jnp.asarray(logits(0)))).max() > 0


def test_samples_that_are_not_there_do_not_count(hyper):
    views, valid = {"weak": logits(0), "strong": logits(1)}, np.arange(8) < 6
    short = FixMatchLoss()(Echo(), *step_of(views, LABELS, valid=valid), hyper)[0]
    other = {name: np.concatenate([view[:6], logits(7)[6:]]) for name, view in views.items()}
    np.testing.assert_allclose(short, FixMatchLoss()(Echo(), *step_of(other, LABELS, valid=valid), hyper)[0])


def test_without_a_teacher_it_is_supervised(hyper):
    model, step = step_of({"weak": logits(0), "strong": logits(1)}, LABELS, teacher=False)
    loss, told = FixMatchLoss()(Echo(), model, step, hyper)
    np.testing.assert_allclose(loss, reference.cross_entropies(logits(0)[:3], LABELS[:3]).mean(), rtol=1e-12)
    assert told.pseudo is None


def test_who_labels_is_a_choice_and_the_threshold_a_number():
    own = method_of(Config(method="fixmatch", fixmatch_labels="own"))
    assert own != method_of(Config(method="fixmatch"))
    assert method_of(Config(method="fixmatch", fixmatch_threshold=0.5)) == method_of(Config(method="fixmatch"))
