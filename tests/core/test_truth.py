"""The truth judges pseudo-labels and does nothing else; tests/methods/test_all_methods.py asks every method."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rscfed_jax.core.batches import Batches, holding_of
from rscfed_jax.core.method import Method, Verdict
from rscfed_jax.core.objective import PseudoLabels, mean_teacher_loss
from tests.helpers import CLASSES, FixedSubsets, Tiny, once, with_permuted_truth

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


def judgements(tiny, method):
    """What two truths say of a method's second round; all else is the same to the bit."""
    algorithm = tiny.algorithm(method=method)
    ends, judged = [], []
    for data in (tiny.data, with_permuted_truth(tiny.data)):
        state = tiny.state(algorithm)
        for _ in range(2):
            state, report = once(algorithm, state, data, tiny.hyper)
        ends.append((jax.random.key_data(state.key), state._replace(key=None), report._replace(judged=None)))
        judged.append(np.asarray(report.judged))
    chex.assert_trees_all_equal(*ends)
    return judged


@pytest.mark.parametrize("method", [TOLD, PREPARED], ids=["objective", "preparation"])
def test_each_unlabeled_sample_is_judged_once_an_epoch_by_its_true_class(method):
    tiny = Tiny()
    one, other = judgements(tiny, method)
    for judged, data in ((one, tiny.data), (other, with_permuted_truth(tiny.data))):
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
