"""How a client's numbers move; twenty steps beside PyTorch are in test_client.py."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rscfed_jax.config import Config, Hyper
from rscfed_jax.core.faults import Faults
from rscfed_jax.core.optimizer import (
    SERVER_OPTIMIZERS,
    clip_by_global_norm,
    ema,
    ema_keep,
    init_client,
    norm,
    norm_of_all,
    scheduled,
    server_step,
    toward,
)
from tests import reference
from tests.helpers import Tiny, once


def test_ema_matches_the_paper_and_leaves_batch_statistics_alone(x64):
    teacher, student = np.random.default_rng(0).normal(size=(2, 7))
    out = ema({"params": jnp.asarray(teacher), "batch_stats": jnp.ones(2)}, jnp.asarray(student), 0.999)
    np.testing.assert_allclose(out["params"], reference.ema(teacher, student, 0.999), rtol=1e-15)
    np.testing.assert_array_equal(out["batch_stats"], 1)


def test_the_published_warm_up_lets_a_teacher_follow_faster():
    plain, warm = (Hyper.of(Config(ema_warmup=switch)) for switch in (False, True))
    steps = jnp.array([0, 1, 9, 10_000])
    np.testing.assert_allclose(ema_keep(steps, plain), 0.999)
    np.testing.assert_allclose(ema_keep(steps, warm), [0, 0.5, 0.9, 0.999], rtol=1e-6)


def test_clipping_has_pytorchs_epsilon(x64):
    grads = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([4.0])}
    clipped, _ = clip_by_global_norm(1.0).update(grads, None)
    np.testing.assert_allclose(clipped["b"], 4 / (5 + 1e-6), rtol=1e-15)
    kept, _ = clip_by_global_norm(10.0).update(grads, None)
    np.testing.assert_array_equal(kept["b"], 4.0)


def test_a_new_client_has_no_teacher_where_none_is_needed():
    model = {"params": {"w": jnp.ones(3)}}
    assert init_client(model, Hyper.of(Config()), with_teacher=False).teacher is None
    with_one = init_client(model, Hyper.of(Config()), with_teacher=True)
    assert with_one.teacher["params"]["w"].tolist() == [0, 0, 0]
    assert int(with_one.step) == 0


def test_learning_rates_are_constant_or_fall_along_half_a_cosine():
    rounds = jnp.array([-3, 0, 25, 50, 100, 130])
    constant, falling = (Hyper.of(Config(cosine_rounds=number)) for number in (0, 100))
    np.testing.assert_array_equal(scheduled(jnp.float32(0.03), rounds, constant), np.float32(0.03))
    expected = [0.03 * (1 + np.cos(np.pi * done)) / 2 for done in (0, 0, 0.25, 0.5, 1, 1)]
    np.testing.assert_allclose(scheduled(0.03, rounds, falling), expected, atol=1e-8)


def test_fedproxs_term_is_the_gradient_of_half_the_squared_distance(x64):
    now, sent, grad = (jnp.asarray(part) for part in np.random.default_rng(0).normal(size=(3, 7)))
    term = jax.grad(lambda w: 0.3 / 2 * jnp.sum((w - sent) ** 2))(now)
    np.testing.assert_allclose(toward({"w": grad}, {"w": now}, {"w": sent}, mu=0.3)["w"], grad + term, rtol=1e-12)


def test_a_proximal_client_stays_closer_to_the_model_that_was_sent():
    def distance(mu):
        tiny = Tiny(prox_mu=mu)
        algorithm = tiny.algorithm(proximal=True)
        start = tiny.state(algorithm)
        after, _ = once(algorithm, start, tiny.data, tiny.hyper)
        moved = jax.tree.map(lambda a, b: float(jnp.sum((a - b) ** 2)), after.model["params"], start.model["params"])
        return sum(jax.tree.leaves(moved)) ** 0.5

    assert distance(10.0) < 0.9 * distance(0.0)


def run_server(name, *, rounds=3, **settings):
    """The parameters after some rounds in which the mean is always the same, and what NumPy makes of it."""
    hyper = jax.tree.map(jnp.float64, Hyper.of(Config(server_optimizer=name, **settings)))
    before, mean = ({"params": {"w": jnp.asarray(part)}} for part in np.random.default_rng(0).normal(size=(2, 5)))
    optimizer = SERVER_OPTIMIZERS[name]
    state, model = optimizer(hyper).init(before["params"]), before
    for _ in range(rounds):
        model, state = server_step(optimizer, state, model, mean | {"batch_stats": jnp.ones(1)}, hyper)
    np.testing.assert_array_equal(model["batch_stats"], 1)
    return np.asarray(before["params"]["w"]), np.asarray(mean["params"]["w"]), model["params"]["w"]


def test_server_momentum_matches_its_equations(x64):
    w, mean, ours = run_server("momentum", server_momentum=0.5, server_lr=0.7)
    velocity = np.zeros(5)
    for _ in range(3):
        velocity = 0.5 * velocity + (w - mean)
        w = w - 0.7 * velocity
    np.testing.assert_allclose(ours, w, rtol=1e-12)


def test_server_adam_matches_its_equations(x64):
    w, mean, ours = run_server("adam", server_momentum=0.9)
    first, second = np.zeros(5), np.zeros(5)
    for step in range(1, 4):
        gradient = w - mean
        first, second = 0.9 * first + 0.1 * gradient, 0.99 * second + 0.01 * gradient**2
        w = w - 0.01 * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.99**step)) + 1e-3)
    np.testing.assert_allclose(ours, w, rtol=1e-10)


def test_momentum_of_zero_and_rate_one_takes_the_mean(x64):
    _, mean, ours = run_server("momentum", server_momentum=0.0, rounds=1)
    np.testing.assert_allclose(ours, mean, rtol=1e-12)


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_a_round_keeps_the_servers_state(name):
    tiny = Tiny(server_optimizer=name)
    algorithm = tiny.algorithm(server=SERVER_OPTIMIZERS[name])
    start = tiny.state(algorithm)
    after, report = once(algorithm, start, tiny.data, tiny.hyper)
    assert jax.eval_shape(lambda: after) == jax.eval_shape(lambda: start)
    assert bool(report.finite)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(after.optimizer)) > 0


def test_momentum_alone_does_not_move_a_model_that_nobody_had_a_say_in():
    tiny = Tiny(server_optimizer="momentum", drop_rate=0.0)
    algorithm = tiny.algorithm(server=SERVER_OPTIMIZERS["momentum"], faults=Faults(drops=True))
    after, _ = once(algorithm, tiny.state(algorithm), tiny.data, tiny.hyper)
    silent, _ = once(algorithm, after, tiny.data, tiny.hyper._replace(drop_rate=jnp.float32(1)))
    chex.assert_trees_all_equal((silent.model, silent.optimizer), (after.model, after.optimizer))


def test_the_norm_of_all_numbers_at_once_is_the_norm_leaf_by_leaf(x64):
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = ((3, 3, 2, 4), (5, 6), (7,))
    tree = {str(shape): jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)}
    by_hand = np.sqrt(sum(float(np.sum(np.square(leaf))) for leaf in tree.values()))
    np.testing.assert_allclose(norm_of_all(tree), by_hand, rtol=1e-12)
    np.testing.assert_allclose(norm(tree), by_hand, rtol=1e-12)
