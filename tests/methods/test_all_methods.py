"""Generic tests over the table of all methods, and a line or two about those that need no file of their own."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rscfed_jax.config import Config
from rscfed_jax.core.aggregation import Members
from rscfed_jax.core.client_axis import ClientAxis
from rscfed_jax.core.method import Server
from rscfed_jax.core.program import scan_rounds
from rscfed_jax.methods.registry import METHODS
from rscfed_jax.runner.build import make_algorithms
from tests.helpers import Tiny, once, ragged_federation, with_permuted_truth

# An untrained network is sure of nothing.
EASY = {
    **{name: {f"{name}_threshold": 0.0} for name in ("balanced_labels", "fedrgd", "fixmatch", "sage", "semianagg")},
    **{name: {f"{name}_threshold": 0.0, "local_epochs": 1} for name in ("feddb", "semifl")},
    "cbafed": {"cbafed_base": 0.0, "cbafed_labeled_epochs": 2, "cbafed_local_every": 1},
    "fedirm": {"fedirm_confidence": 0.0},
}


def built(name, **settings):
    """A small simulation and its algorithm."""
    config = {"method": name, "subsets": 2, "subset_size": 3, "image_size": 16} | EASY.get(name, {}) | settings
    tiny = Tiny(**config)
    return tiny, tiny.algorithm(method=METHODS[name](Config(**config)))


@pytest.fixture(scope="module")
def rounds():
    """Every method's simulation, algorithm, first state and what two rounds make of it; each is run when asked for."""
    done = {}

    def run(name):
        if name not in done:
            # One method has a strong view, which takes long to compile; to the others it is a view like any other.
            tiny, algorithm = built(name, **({} if name == "fixmatch" else {"strong": "weak"}))
            state = start = tiny.state(algorithm)
            for _ in range(2):
                state, report = once(algorithm, state, tiny.data, tiny.hyper)
            done[name] = tiny, algorithm, start, state, report
        return done[name]

    return run


@pytest.mark.parametrize("name", METHODS)
def test_rounds_keep_the_shapes_of_the_state_and_move_a_finite_model(rounds, name):
    _, _, start, after, report = rounds(name)
    assert jax.eval_shape(lambda: after) == jax.eval_shape(lambda: start)  # or each round would be compiled anew
    assert bool(report.finite)
    assert not report.broken.any()
    np.testing.assert_allclose(report.weights.sum(axis=1), 1, atol=1e-5)
    moved = jax.tree.map(lambda new, old: float(jnp.abs(new - old).max()), after.model, start.model)
    assert max(jax.tree.leaves(moved)) > 1e-4


@pytest.mark.parametrize("name", METHODS)
def test_no_model_depends_on_a_hidden_label(rounds, name):
    tiny, algorithm, state, after, report = rounds(name)
    other = with_permuted_truth(tiny.data)
    for _ in range(2):
        state, judged_anew = once(algorithm, state, other, tiny.hyper)
    chex.assert_trees_all_equal(state._replace(key=0), after._replace(key=0))
    chex.assert_trees_all_equal(judged_anew._replace(judged=None), report._replace(judged=None))
    if algorithm.method.judged:
        seen, kept, right = np.asarray(report.judged).sum(axis=0)
        assert seen >= kept > 0  # pseudo-labels were trained on
        assert kept >= right
        assert (judged_anew.judged != report.judged).any()


@pytest.mark.parametrize("name", METHODS)
def test_the_initial_model_is_the_same_for_every_method_of_a_seed(name):
    tiny, algorithm = built(name)
    _, other = built("rscfed")
    chex.assert_trees_all_equal(tiny.state(algorithm).model, tiny.state(other).model)


@pytest.mark.parametrize("name", METHODS)
def test_the_order_of_clients_does_not_matter_to_the_server(name):
    tiny, algorithm = built(name)
    method, network, rng = algorithm.method, tiny.network, np.random.default_rng(0)
    model = tiny.state(algorithm).model
    memory = method.memory(network, model)

    def some(leaf):
        return jnp.asarray(rng.uniform(0.1, 1, (1, 4, *leaf.shape)), leaf.dtype)

    models, news = jax.tree.map(some, (model, method.zero_news(network, jnp.float32)))
    members = Members(
        jnp.array([[3, 90, 40, 8]]), jnp.array([[True, False, False, True]]), jnp.ones((1, 4), bool), news
    )

    @jax.jit
    def serve(models, members):
        consensus = jax.vmap(method.aggregate, in_axes=(0, 0, None))(models, members, tiny.hyper)
        mean = jax.tree.map(lambda leaf: leaf[0], consensus.model)
        if method.serve is None:
            return mean, memory
        return method.serve(Server(jnp.int32(3), model, mean, memory), members, tiny.hyper)

    order = jnp.array([2, 0, 3, 1])
    shuffled = jax.tree.map(lambda leaf: leaf[:, order], (models, members))
    chex.assert_trees_all_close(serve(models, members), serve(*shuffled), atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_what_a_broken_client_tells_changes_nothing(name):
    tiny, algorithm = built(name)
    method, model = algorithm.method, tiny.state(algorithm).model
    memory = method.memory(tiny.network, model)

    def served(told):
        models, news = jax.tree.map(
            lambda leaf: jnp.ones((1, 4, *leaf.shape)), (model, method.zero_news(tiny.network, jnp.float32))
        )
        news = jax.tree.map(lambda leaf: leaf.at[:, 2].set(told), news)
        labeled, healthy = jnp.array([[True, False, False, False]]), jnp.array([[True, True, False, True]])
        members = Members(jnp.array([[9, 5, 7, 8]]), labeled, healthy, news)
        consensus = jax.vmap(method.aggregate, in_axes=(0, 0, None))(models, members, tiny.hyper)
        assert consensus.weights[0, 2] == 0
        if method.serve is None:
            return consensus.weights
        return consensus.weights, method.serve(Server(jnp.int32(3), model, model, memory), members, tiny.hyper)

    chex.assert_trees_all_equal(served(1.0), served(jnp.nan))


@pytest.mark.parametrize("labeled", [True, False])
@pytest.mark.parametrize("name", METHODS)
def test_one_client_alone_is_its_own_consensus(name, labeled):
    tiny, algorithm = built(name)
    method, model = algorithm.method, tiny.state(algorithm).model
    models, news = jax.tree.map(lambda leaf: leaf[None] + 1, (model, method.zero_news(tiny.network, jnp.float32)))
    members = Members(jnp.array([9]), jnp.array([labeled]), jnp.array([True]), news)
    consensus = method.aggregate(models, members, tiny.hyper)
    np.testing.assert_allclose(consensus.weights, [1], rtol=1e-6)
    chex.assert_trees_all_close(consensus.model, jax.tree.map(lambda leaf: leaf[0], models), rtol=1e-6)


QUICK = ("rscfed", "cbafed")  # one without and one with nearly every part


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in METHODS])
def test_rounds_by_scan_equal_rounds_one_by_one(rounds, name):
    tiny, algorithm, start, after, _ = rounds(name)
    scan = jax.jit(scan_rounds, static_argnames=("algorithm", "rounds"))
    scanned, _ = scan(algorithm, start, tiny.data, tiny.hyper, rounds=2)
    chex.assert_trees_all_close(scanned._replace(key=0), after._replace(key=0), atol=1e-4)


LOWERED = (*QUICK, "semifl")  # and one with a strong view, mixup and a second phase


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in LOWERED else pytest.mark.slow) for n in METHODS])
def test_a_round_lowers_for_gpu_and_tpu(name):
    tiny, algorithm = built(name)
    state = jax.eval_shape(lambda: tiny.state(algorithm))
    exported = jax.export.export(once, platforms=["cuda", "tpu"])(algorithm, state, tiny.data, tiny.hyper)
    assert exported.platforms == ("cuda", "tpu")
    assert not re.search("callback|infeed|outfeed", exported.mlir_module())


def test_sso_is_rscfed_with_beta_zero(rounds):
    _, _, _, sso, _ = rounds("sso")
    tiny, algorithm, state, _, _ = rounds("rscfed")
    zero = tiny.hyper._replace(beta=jnp.float32(0), beta_labeled=jnp.float32(0))
    for _ in range(2):
        state, _ = once(algorithm, state, tiny.data, zero)
    chex.assert_trees_all_close(state.model, sso.model, atol=1e-5)


def test_fedavg_trains_the_labeled_clients_alone_and_without_a_teacher(rounds):
    _, _, _, after, report = rounds("fedavg")
    assert report.subsets.tolist() == [[1, 4]]
    momentum = jnp.abs(after.clients.optimizer[2][0].trace["l3"]["kernel"]).sum(axis=(1, 2))
    assert jnp.flatnonzero(momentum).tolist() == [1, 4]
    assert after.clients.teacher is None
    assert np.isnan(report.consistency_loss)
    np.testing.assert_allclose(report.weights, [[17 / 27, 10 / 27]], rtol=1e-6)


def test_the_lower_bound_and_a_warm_up_see_no_image_without_a_label():
    """Partly labeled clients: neither their steps nor their batch statistics depend on the other samples."""
    whole = ragged_federation(labeled=(True,) * 5)
    partly = whole._replace(label_visible=[np.arange(len(own)) < 2 for own in whole.samples])
    hidden = np.concatenate([own[2:] for own in whole.samples])
    images = partly.dataset.train_images.copy()
    images[hidden] = 255 - images[hidden]
    inverted = partly._replace(dataset=partly.dataset._replace(train_images=images))
    for name in ("fedavg", "fixmatch"):
        config = Config(method=name, image_size=16, strong="weak")
        models = []
        for federation in (partly, inverted):
            tiny = Tiny(federation)
            # Both have the same mean and deviation of all images.
            tiny.data = tiny.data._replace(mean=jnp.full(3, 127.5), std=jnp.full(3, 60.0))
            _, warmup = make_algorithms(config, tiny.network, METHODS[name](config), ClientAxis(1), any_unlabeled=True)
            own = tiny.algorithm(method=METHODS[name](config)) if name == "fedavg" else warmup
            state, _ = once(own, tiny.state(own), tiny.data, tiny.hyper)
            models.append(state.model)
        chex.assert_trees_all_equal(*models)


def test_fed_consist_gives_the_labeled_clients_half_of_the_weight_or_their_data_amount(rounds):
    tiny, algorithm, state, _, report = rounds("fed_consist")
    assert report.subsets.tolist() == [[0, 1, 2, 3, 4]]
    assert float(report.weights[0, [1, 4]].sum()) == pytest.approx(0.5, abs=1e-5)
    _, report = once(algorithm, state, tiny.data, tiny.hyper._replace(labeled_share=jnp.float32(-1)))
    np.testing.assert_allclose(report.weights, [tiny.data.sizes / 63], atol=1e-5)
