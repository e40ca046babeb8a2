"""Local training: parity with PyTorch, the optimiser's rules, the order of samples."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rscfed_jax.config import Config, Hyper
from rscfed_jax.local.objective import Batch, Bulletin
from rscfed_jax.local.training import (
    ClientState,
    LocalTraining,
    clip_by_global_norm,
    ema,
    ema_keep,
    init_client,
    random_order,
    train_step,
)
from rscfed_jax.models import SimpleCNN
from tests import reference
from tests.golden import make_torch_golden as golden


def to_flax(weights):
    """PyTorch's tensors as flax variables."""
    params = {}
    for name, value in weights.items():
        layer, kind = name.split(".")
        if kind == "weight":
            value = value.transpose(2, 3, 1, 0) if value.ndim == 4 else value.T
        params.setdefault(layer, {})["kernel" if kind == "weight" else "bias"] = jnp.asarray(value)
    return {"params": params}


def to_torch(model):
    """Flax variables as PyTorch's tensors."""
    weights = {}
    for layer, params in model["params"].items():
        kernel = np.asarray(params["kernel"])
        weights[f"{layer}.weight"] = kernel.transpose(3, 2, 0, 1) if kernel.ndim == 4 else kernel.T
        weights[f"{layer}.bias"] = np.asarray(params["bias"])
    return {name: weights[name] for name in golden.SHAPES}


def run_ours(*, labeled, conv):
    """The golden script's steps with `train_step`."""
    settings = Config(**golden.SETTINGS, clip_norm=golden.CLIP_NORM[labeled], ema_warmup=True)
    hyper = jax.tree.map(jnp.float64, Hyper.of(settings))
    network = SimpleCNN(golden.CLASSES, conv=conv, dtype=jnp.float64, param_dtype=jnp.float64)
    task = LocalTraining(network, image_size=golden.SIZE, batch_size=golden.BATCH)
    model = to_flax(golden.initial_weights(0.0))
    client = init_client(model, hyper, with_teacher=True)._replace(teacher=to_flax(golden.initial_weights(0.5)))
    rate = hyper.lr_labeled if labeled else hyper.lr_unlabeled
    step_once = jax.jit(
        lambda model, client, batch: train_step(task, model, client, batch, rate, hyper, Bulletin(0, None))
    )
    for step in range(golden.STEPS):
        views = [jnp.asarray(golden.batch(step, view).transpose(1, 2, 3, 0)) for view in (0, 1)]
        labels = jnp.asarray(golden.labels(step)) if labeled else jnp.full(golden.BATCH, -1)
        batch = Batch(*views, labels, jnp.ones(golden.BATCH, bool))
        model, client, _ = step_once(model, client, batch)
    return {"student": to_torch(model), "teacher": to_torch(client.teacher)}


@pytest.mark.parametrize("labeled", [True, False], ids=["labeled", "unlabeled"])
@pytest.mark.parametrize("conv", ["matmul", "plain"])
def test_twenty_steps_agree_with_pytorch_to_1e_9(x64, labeled, conv):
    ours = run_ours(labeled=labeled, conv=conv)
    kind = "labeled" if labeled else "unlabeled"
    with np.load(golden.FILE) as arrays:
        for who, weights in ours.items():
            for name, value in golden.summarise(weights).items():
                np.testing.assert_allclose(value, arrays[f"{kind}/{who}/{name}"], atol=1e-9, rtol=1e-9)
    if conv == "matmul" and importlib.util.find_spec("torch"):
        for who, weights in golden.run_torch(labeled=labeled).items():
            for name, value in weights.items():
                np.testing.assert_allclose(ours[who][name], value, atol=1e-9, rtol=1e-9)


def test_the_golden_steps_move_the_model_far():
    """Parity would be empty if nothing happened in those steps."""
    start = golden.summarise(golden.initial_weights(0.0))
    with np.load(golden.FILE) as arrays:
        for kind in ("labeled", "unlabeled"):
            moved = max(np.abs(arrays[f"{kind}/student/{name}"][2:] - start[name][2:]).max() for name in start)
            assert moved > 0.02


def test_ema_matches_the_paper(x64):
    rng = np.random.default_rng(0)
    teacher, student = rng.normal(size=(2, 7))
    model = {"params": jnp.asarray(teacher), "batch_stats": jnp.ones(2)}
    out = ema(model, jnp.asarray(student), 0.999)
    np.testing.assert_allclose(out["params"], reference.ema(teacher, student, 0.999), rtol=1e-15)
    np.testing.assert_array_equal(out["batch_stats"], 1)


def test_the_published_warm_up_lets_a_teacher_follow_faster():
    plain = Hyper.of(Config(ema_warmup=False))
    warm = Hyper.of(Config(ema_warmup=True))
    steps = jnp.array([0, 1, 9, 10_000])
    np.testing.assert_allclose(ema_keep(steps, plain), 0.999)
    np.testing.assert_allclose(ema_keep(steps, warm), [0, 0.5, 0.9, 0.999], rtol=1e-6)


def test_clipping_has_pytorchs_epsilon(x64):
    grads = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([4.0])}
    clipped, _ = clip_by_global_norm(1.0).update(grads, None)
    np.testing.assert_allclose(clipped["b"], 4 / (5 + 1e-6), rtol=1e-15)
    kept, _ = clip_by_global_norm(10.0).update(grads, None)
    np.testing.assert_array_equal(kept["b"], 4.0)


@pytest.mark.parametrize("size", [1, 5, 12])
def test_an_epoch_visits_each_sample_once(size):
    order = random_order(jax.random.key(0), jnp.arange(12), size)
    assert sorted(order[:size].tolist()) == list(range(size))
    other = random_order(jax.random.key(1), jnp.arange(12), size)
    assert size == 1 or order.tolist() != other.tolist()


def test_the_client_state_has_no_teacher_where_none_is_needed():
    hyper = jax.tree.map(jnp.float32, Hyper.of(Config()))
    state = init_client({"params": {"w": jnp.ones(3)}}, hyper, with_teacher=False)
    assert isinstance(state, ClientState)
    assert state.teacher is None
