"""SemiFL's labels, mixup, mean and second phase against its source."""

import jax
import jax.numpy as jnp
import numpy as np

from rscfed_jax.config import PRESETS, Config, Hyper
from rscfed_jax.core.aggregation import Members
from rscfed_jax.core.objective import Batch
from rscfed_jax.methods.registry import METHODS, method_of
from rscfed_jax.methods.semifl import label, loss, mixture, of_the_sure
from tests.helpers import SIZES, Echo, Tiny, echoed, once, step_of
from tests.methods import reference


def hyper_of(**settings):
    return jax.tree.map(jnp.float32, Hyper.of(Config(method="semifl", **settings)))


def draw(seed):
    return np.random.default_rng(seed).normal(size=(6, 5)) * 2


def test_labels_are_those_of_the_sent_model_and_kept_where_it_is_sure():
    bias = np.arange(5.0)
    _, step = step_of({"weak": draw(0)}, np.array([3, -1, -1, -1, -1, -1]), valid=np.arange(6) < 5, bias=bias)
    verdict = label(Echo(), step, hyper_of(semifl_threshold=0.8))
    p = reference.softmax(draw(0) + bias)
    np.testing.assert_array_equal(verdict.labels, p.argmax(axis=1))
    np.testing.assert_array_equal(verdict.keep, p.max(axis=1) >= 0.8)
    assert float(verdict.news["kept"]) == 1 + (p[1:5].max(axis=1) >= 0.8).sum()


def test_the_loss_is_that_of_a_strong_view_and_of_a_mixture(x64):
    hyper = jax.tree.map(jnp.float64, hyper_of())
    said, others = np.array([0, 1, 2, 3, 4, 0]), np.array([4, 4, 1, 0, 2, 2])
    partner = Batch({"weak": echoed(draw(2))}, jnp.full(6, -1), jnp.ones(6, bool), None, jnp.asarray(others))
    views = {"weak": draw(0), "strong": draw(1)}
    model, step = step_of(views, np.full(6, -1), pseudo_labels=jnp.asarray(said), partner=partner)
    total, told = loss(Echo(), model, step, hyper)
    share = float(jax.random.beta(step.key, 0.75, 0.75, dtype=jnp.float64))
    mixed = share * draw(0) + (1 - share) * draw(2)
    np.testing.assert_allclose(mixture(step.batch, partner, jnp.float64(share)), echoed(mixed))
    expected = reference.cross_entropies(draw(1), said).mean() + reference.mixup(share, mixed, said, others)
    np.testing.assert_allclose(total, expected, rtol=1e-10)
    np.testing.assert_allclose(told.losses.consistency, reference.cross_entropies(draw(1), said).mean(), rtol=1e-10)


def test_clients_count_equally_and_those_without_a_sure_label_not_at_all():
    kept = {"kept": jnp.array([5.0, 2.0, 9.0, 0.0])}
    members = Members(jnp.array([5, 900, 70, 30]), jnp.arange(4) == 0, jnp.ones(4, bool), kept)
    for preset in PRESETS:
        consensus = of_the_sure({"params": {"w": jnp.arange(4.0)}}, members, hyper_of(preset=preset))
        np.testing.assert_allclose(consensus.weights, [1 / 3, 1 / 3, 1 / 3, 0], rtol=1e-6)


def test_unlabeled_clients_train_first_then_labeled_ones_from_their_mean():
    settings = {"method": "semifl", "semifl_threshold": 0.0, "local_epochs": 1, "strong": "weak"}
    config, tiny = Config(**settings), Tiny(**settings)
    algorithm = tiny.algorithm(method=METHODS["semifl"](config))
    state, report = once(algorithm, tiny.state(algorithm), tiny.data, tiny.hyper)
    assert report.subsets.tolist() == [[0, 2, 3]]
    assert int(report.judged[:, 1].sum()) == SIZES[0] + SIZES[2] + SIZES[3]
    assert (int(state.models_down), int(state.models_up)) == (5, 5)
    nobody = tiny.hyper._replace(own={**tiny.hyper.own, "threshold": jnp.float32(1.1)})
    unsure, report = once(algorithm, tiny.state(algorithm), tiny.data, nobody)
    assert float(report.weights.sum()) == 0
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), unsure.model, tiny.state(algorithm).model)
    assert max(jax.tree.leaves(moved)) > 0  # by the labeled clients alone
    assert report.labeled_loss > 0  # of the second phase


def test_the_server_has_momentum_by_default_and_the_second_phase_its_own_epochs():
    config = Config(method="semifl", semifl_finish_epochs=2)
    assert (config.server_optimizer, config.server_lr, config.server_momentum) == ("momentum", 1.0, 0.5)
    assert (config.local_epochs, method_of(config).finish.epochs) == (5, 2)
