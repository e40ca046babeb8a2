"""CBAFed's thresholds, labels, weights and blends against its source."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rscfed_jax.config import Config, Hyper, SettingError
from rscfed_jax.core.aggregation import Members
from rscfed_jax.core.method import Pause, Server
from rscfed_jax.methods.cbafed import Memory, blend_locally, by_kept, chosen, epochs, label, loss, serve, thresholds
from rscfed_jax.methods.registry import METHODS
from tests.helpers import CLASSES, SIZES, Echo, Tiny, once, step_of
from tests.methods import reference


def hyper_of(**own):
    settings = {f"cbafed_{name}": value for name, value in own.items()}
    return jax.tree.map(jnp.float32, Hyper.of(Config(method="cbafed", **settings)))


counts_of_classes = st.lists(st.integers(0, 3000), min_size=5, max_size=12).filter(sum)


@given(counts_of_classes)
def test_thresholds_rise_with_a_classs_share_up_to_the_cap(counts):
    with jax.enable_x64(True):
        own = jax.tree.map(jnp.float64, hyper_of().own)
        found = thresholds(jnp.asarray(counts, jnp.float64), own)
        np.testing.assert_allclose(found, reference.cbafed_thresholds(counts), atol=1e-6)
        order = np.argsort(counts)
        assert (np.diff(np.asarray(found)[order]) >= -1e-12).all()


def test_the_published_svhn_client_has_lower_thresholds_for_its_rare_classes():
    counts = jnp.array([15, 292, 986, 116, 63, 1285, 1352, 1438, 807, 267], jnp.float32)
    found = thresholds(counts, hyper_of(cap=0.9).own)
    np.testing.assert_allclose(found, reference.cbafed_thresholds(np.asarray(counts), cap=0.9), rtol=1e-5)
    assert float(found[0]) < 0.78 < 0.89 < float(found[7])


@given(st.integers(0, 10**6))
def test_labels_match_the_source_the_second_class_of_rare_ones_included(seed):
    rng = np.random.default_rng(seed)
    p = reference.softmax(rng.normal(size=(12, 5)) * 3)
    counts = rng.integers(0, 100, 5) * np.array([1, 0, 1, 1, 1]) + 1
    with jax.enable_x64(True):
        labels, keep = chosen(
            jnp.asarray(p), jnp.asarray(counts, jnp.float64), jax.tree.map(jnp.float64, hyper_of().own)
        )
    for sample in range(12):
        expected, kept = reference.cbafed_label(p[sample], counts)
        assert (int(labels[sample]), bool(keep[sample])) == (expected, kept)


def test_parts_can_be_switched_off():
    counts, p = jnp.array([1000.0, 5, 500, 500, 500]), jnp.array([[0.6, 0.3, 0.1, 0, 0]])
    labels, keep = chosen(p, counts, hyper_of().own)
    assert (int(labels[0]), bool(keep[0])) == (1, True)
    labels, keep = chosen(p, counts, hyper_of(tail=False).own)
    assert (int(labels[0]), bool(keep[0])) == (0, False)
    np.testing.assert_allclose(thresholds(counts, hyper_of(balanced=False).own), 0.95)


def test_a_client_tells_the_classes_that_it_trains_on():
    logits = np.eye(5)[[0, 1, 1, 2, 3, 3]] * 20
    memory = Memory(jnp.array([100.0] * 5), None)
    _, step = step_of({"weak": logits}, np.array([4, -1, -1, -1, -1, -1]), valid=np.arange(6) < 5, memory=memory)
    verdict = label(Echo(), step, hyper_of())
    np.testing.assert_array_equal(verdict.news["classes"], [0, 2, 1, 1, 1])  # a label as it is, padding not at all


def test_a_warm_up_keeps_no_pseudo_label_of_a_partly_labeled_client():
    memory = Memory(jnp.zeros(5), None)
    views, labels = {"weak": np.eye(5)[[0, 1, 2]] * 20}, np.array([0, -1, -1])
    for round_, kept in ((-1, [1, 0, 0, 0, 0]), (0, [1, 1, 1, 0, 0])):
        _, step = step_of(views, labels, memory=memory, round=jnp.int32(round_))
        verdict = label(Echo(), step, hyper_of())
        np.testing.assert_array_equal(verdict.keep[1:], round_ == 0)
        np.testing.assert_array_equal(verdict.news["classes"], kept)


def test_the_loss_is_cross_entropy_on_labels_and_kept_labels(x64):
    logits = np.random.default_rng(0).normal(size=(6, 5))
    labels, said = np.array([2, 3, -1, -1, -1, -1]), np.array([2, 3, 0, 1, 1, 4])
    model, step = step_of({"weak": logits}, labels, pseudo_labels=jnp.asarray(said), valid=np.arange(6) < 5)
    total, told = loss(Echo(), model, step, hyper_of())
    expected = [reference.cross_entropies(logits[part], said[part]).mean() for part in (slice(0, 2), slice(2, 5))]
    np.testing.assert_allclose([told.losses.labeled, told.losses.consistency], expected, rtol=1e-12)
    np.testing.assert_allclose(total, sum(expected), rtol=1e-12)


def test_a_labeled_client_returns_its_models_of_epochs_0_5_and_10_blended():
    model, record = {"params": jnp.zeros(11)}, {"params": jnp.full(11, 99.0)}
    for epoch in range(11):
        trained = {"params": model["params"].at[epoch].add(1.0)}  # what each epoch adds, apart from the others
        pause = Pause(jnp.int32(epoch), jnp.bool(True), record)
        model, record = blend_locally(pause, trained, record, hyper_of())
    # w_0 has the first number, w_5 those up to the sixth on the way it took, w_10 all: .64 w_0 + .16 w_5 + .2 w_10.
    np.testing.assert_allclose(model["params"], [1] + [0.2 * 0.2 + 0.16] * 5 + [0.2] * 5, rtol=1e-6)


@pytest.mark.parametrize(("labeled", "own"), [(False, {}), (True, {"local_residual": False})])
def test_other_clients_are_not_blended(labeled, own):
    pause = Pause(jnp.int32(5), jnp.bool(labeled), None)
    model, _ = blend_locally(pause, {"params": jnp.ones(2)}, {"params": jnp.zeros(2)}, hyper_of(**own))
    np.testing.assert_array_equal(model["params"], 1)


def served(round_, *, record=0.0, warmup_rounds=45, **own):
    news = {"classes": jnp.array([[[3.0, 1.0], [0.0, 4.0], [9.0, 9.0]]])}
    members = Members(jnp.ones((1, 3)), jnp.zeros((1, 3), bool), jnp.array([[True, True, False]]), news)
    memory = Memory(jnp.array([7.0, 7.0]), {"params": jnp.full(1, record)})
    hyper = hyper_of(**own)._replace(warmup_rounds=jnp.float32(warmup_rounds))
    return serve(Server(jnp.int32(round_), None, {"params": jnp.ones(1)}, memory), members, hyper)


def test_the_server_blends_every_fifth_round_and_counts_the_classes_of_healthy_clients():
    for round_, expected in ((1, 1.0), (4, 1.0), (5, 0.5), (10, 0.5), (0, 1.0)):
        model, memory = served(round_)
        assert float(model["params"][0]) == expected
        assert float(memory.record["params"][0]) == (0.5 if expected == 0.5 else 0.0)
        np.testing.assert_array_equal(memory.counts, [3, 5])
    assert float(served(5, server_residual=False)[0]["params"][0]) == 1.0
    assert float(served(-1)[1].record["params"][0]) == 1.0  # the warm-up's last model is the first record
    assert float(served(0, warmup_rounds=0)[1].record["params"][0]) == 1.0


def test_models_are_averaged_by_the_samples_they_were_trained_on():
    news = {"classes": jnp.array([[5.0, 5.0], [30.0, 0.0], [0.0, 0.0]])}
    members = Members(jnp.array([10, 500, 20]), jnp.array([True, False, False]), jnp.ones(3, bool), news)
    consensus = by_kept({"params": {"w": jnp.arange(3.0)}}, members, hyper_of()._replace(labeled_share=jnp.float32(-1)))
    np.testing.assert_allclose(consensus.weights, [0.25, 0.75, 0], rtol=1e-6)


def test_a_round_has_eleven_epochs_for_labeled_clients_and_remembers_what_was_kept():
    np.testing.assert_array_equal(epochs(jnp.array([True, False]), hyper_of()), [11, 1])
    settings = {"method": "cbafed", "cbafed_base": 0.0, "cbafed_tail": False, "warmup_rounds": 0}
    tiny = Tiny(**settings)
    algorithm = tiny.algorithm(method=METHODS["cbafed"](Config(**settings)))
    state, report = once(algorithm, tiny.state(algorithm), tiny.data, tiny.hyper)
    seen, kept, right = np.asarray(report.judged).sum(axis=0)
    assert seen == SIZES[0] + SIZES[2] + SIZES[3]
    assert right <= kept <= seen
    assert float(state.memory.counts.sum()) == kept + SIZES[1] + SIZES[4]
    assert state.memory.counts.shape == (CLASSES,)
    truth = np.concatenate([tiny.federation.dataset.train_labels[tiny.federation.samples[c]] for c in (0, 2, 3)])
    np.testing.assert_array_equal(report.judged[:, 0], np.bincount(truth, minlength=CLASSES))


@pytest.mark.parametrize("epochs", [1, 3])
def test_local_epochs_are_its_own(epochs):
    with pytest.raises(SettingError, match="--method cbafed: has --cbafed-labeled-epochs"):
        Config(method="cbafed", local_epochs=epochs)
