"""The truth judges pseudo-labels and does nothing else: no model depends on the label of an unlabeled sample."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rscfed_jax.config import Config
from rscfed_jax.core.batches import Batches, holding_of
from rscfed_jax.core.method import Method, Verdict
from rscfed_jax.core.objective import PseudoLabels, mean_teacher_loss
from rscfed_jax.methods.registry import METHODS
from tests.helpers import CLASSES, FixedSubsets, Tiny, once

EVERYONE = FixedSubsets(((0, 1, 2, 3, 4),))


def sure_labels(network, step, hyper):
    """Pseudo-labels of the model that was sent, half of them kept."""
    del hyper
    logits = network.apply(step.sent, step.batch.views["student"], train=False)
    return Verdict(jnp.argmax(logits, axis=1), jnp.max(logits, axis=1) > jnp.median(jnp.max(logits, axis=1)))


def with_pseudo_labels(network, model, step, hyper):
    """A loss that also tells labels: the model's own guess on every sample."""
    loss, told = mean_teacher_loss(network, model, step, hyper)
    guess = jnp.argmax(network.apply(model, step.batch.views["student"], train=False), axis=1)
    return loss, told._replace(pseudo=PseudoLabels(guess, jnp.ones_like(guess, bool)))


TOLD = Method(sample=EVERYONE, objective=with_pseudo_labels, pseudo_labels=True)
PREPARED = Method(sample=EVERYONE, prepare=sure_labels)
SETTINGS = {"subsets": 2, "subset_size": 3, "image_size": 16, "local_epochs": 1}
# An untrained network is sure of nothing: without these, no pseudo-label would be trained on.
SURE = {
    "cbafed": {"cbafed_base": 0.0, "cbafed_labeled_epochs": 1},
    "fedirm": {"fedirm_confidence": 0.0},
    **{name: {f"{name}_threshold": 0.0} for name in ("feddb", "fedrgd", "fixmatch", "sage", "semianagg", "semifl")},
}
OWN = {name: {"method": name} | SETTINGS | SURE.get(name, {}) for name in METHODS}
BY_NAME = {name: METHODS[name](Config(**OWN[name])) for name in METHODS}


def permuted(data):
    """The data with the truth of the unlabeled samples in another order."""
    truth, hidden = np.array(data.truth), np.array(data.labels) < 0
    truth[hidden] = np.random.default_rng(1).permutation(truth[hidden])
    return data._replace(truth=jnp.asarray(truth))


def judgements(tiny, method):
    """What two truths say of a method's second round; all else is the same to the bit."""
    algorithm = tiny.algorithm(method=method)
    ends, judged = [], []
    for data in (tiny.data, permuted(tiny.data)):
        state = tiny.state(algorithm)
        for _ in range(2):
            state, report = once(algorithm, state, data, tiny.hyper)
        ends.append((jax.random.key_data(state.key), state._replace(key=None), report._replace(judged=None)))
        judged.append(np.asarray(report.judged))
    chex.assert_trees_all_equal(*ends)
    return judged


@pytest.mark.parametrize("name", [name for name, method in BY_NAME.items() if method.judged])
def test_no_model_depends_on_a_hidden_label(name):
    one, other = judgements(Tiny(**OWN[name]), BY_NAME[name])
    assert one[:, 0].sum() == other[:, 0].sum() > 0
    assert one[:, 1].sum() > 0  # some labels were trained on
    for judged in (one, other):
        assert (np.diff(judged, axis=1) <= 0).all()  # seen, of them kept, of them right


@pytest.mark.parametrize("method", [TOLD, PREPARED], ids=["objective", "preparation"])
def test_each_unlabeled_sample_is_judged_once_an_epoch_by_its_true_class(method):
    tiny = Tiny()
    one, other = judgements(tiny, method)
    for judged, data in ((one, tiny.data), (other, permuted(tiny.data))):
        hidden = np.asarray(data.truth)[np.asarray(data.labels) < 0]
        np.testing.assert_array_equal(judged[:, 0], np.bincount(hidden, minlength=CLASSES))
    assert (one[:, 2] != other[:, 2]).any()


def test_a_batch_is_judged_sample_by_sample():
    tiny = Tiny()
    algorithm = tiny.algorithm()
    client = 3  # without labels
    batches = Batches(algorithm, holding_of(jnp.int32(client), tiny.data), tiny.data)
    positions, valid = jnp.arange(8), jnp.arange(8) < 7
    batch = batches.look(jax.random.key(0), positions, valid, tiny.hyper)
    rng = np.random.default_rng(0)
    labels, keep = rng.integers(0, CLASSES, 8), rng.random(8) < 0.7
    judged = batches.judged(batch, PseudoLabels(jnp.asarray(labels), jnp.asarray(keep)))
    truth = tiny.federation.dataset.train_labels[tiny.federation.samples[client]][:7]
    expected = np.zeros((CLASSES, 3))
    for true, label, kept in zip(truth, labels[:7], keep[:7], strict=True):
        expected[true] += [1, kept, kept and label == true]
    np.testing.assert_array_equal(judged, expected)
