"""How a client's numbers move; twenty steps beside PyTorch are in test_client.py."""

import jax.numpy as jnp
import numpy as np

from rscfed_jax.config import Config, Hyper
from rscfed_jax.core.optimizer import clip_by_global_norm, ema, ema_keep, init_client
from tests import reference


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
