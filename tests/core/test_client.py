"""Local training: parity with PyTorch, and many clients at once beside a loop over clients."""

import importlib.util
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rscfed_jax.config import Config, Hyper
from rscfed_jax.core.aggregation import Members, global_mean, sub_consensus
from rscfed_jax.core.algorithm import Algorithm
from rscfed_jax.core.batches import Batches, holding_of
from rscfed_jax.core.client import train_step
from rscfed_jax.core.client_axis import ClientAxis
from rscfed_jax.core.method import Method
from rscfed_jax.core.objective import Batch, Step
from rscfed_jax.core.optimizer import ema, ema_keep, init_client, sgd
from rscfed_jax.models.simple_cnn import SimpleCNN
from tests.golden import make_torch_golden as golden
from tests.helpers import BATCH, LABELED, SIZES, FixedSubsets, Tiny, once, two_devices

SUBSETS = ((0, 1, 3), (3, 4, 2))


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
    algorithm = Algorithm(Method(), network, image_size=golden.SIZE, batch_size=golden.BATCH)
    model = to_flax(golden.initial_weights(0.0))
    client = init_client(model, hyper, with_teacher=True)._replace(teacher=to_flax(golden.initial_weights(0.5)))
    rate = hyper.lr_labeled if labeled else hyper.lr_unlabeled

    @jax.jit
    def step_once(model, client, batch):
        step = Step(jax.random.key(0), batch, None, model, jnp.int32(0), None, None, None)
        return train_step(algorithm, model, client, step, rate, hyper)

    for step in range(golden.STEPS):
        views = {
            name: jnp.asarray(golden.batch(step, view).transpose(1, 2, 3, 0))
            for view, name in enumerate(("student", "teacher"))
        }
        labels = jnp.asarray(golden.labels(step)) if labeled else jnp.full(golden.BATCH, -1)
        model, client, _ = step_once(model, client, Batch(views, labels, jnp.ones(golden.BATCH, bool)))
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


@partial(jax.jit, static_argnames=("network", "labeled"))
def reference_step(network, labeled, model, teacher, memory, views, labels, number, hyper):
    """A step on a batch without padding: plain means and sums."""

    def loss(params):
        logits, stats = network.apply(model | {"params": params}, views["student"], train=True, mutable=["batch_stats"])
        if labeled:
            return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)), stats
        target = jax.nn.softmax(network.apply(teacher, views["teacher"], train=False)) ** (1 / hyper.tau)
        target /= target.sum(axis=1, keepdims=True)
        return hyper.lambda_u * jnp.sum((target - jax.nn.softmax(logits)) ** 2) / BATCH, stats

    grads, stats = jax.grad(loss, has_aux=True)(model["params"])
    optimizer = sgd(hyper, hyper.lr_labeled if labeled else hyper.lr_unlabeled)
    updates, memory = optimizer.update(grads, memory, model["params"])
    model = stats | {"params": jax.tree.map(jnp.add, model["params"], updates)}
    return model, ema(teacher, model["params"], ema_keep(number, hyper)), memory


@partial(jax.jit, static_argnames="algorithm")
def batches_of(algorithm, data, hyper, key, client):
    """The batches of a client's first epoch, and after them those of nothing."""
    batches = Batches(algorithm, holding_of(client, data), data)
    order_key, batch_key = jax.random.split(jax.random.fold_in(key, 0))
    order, numbers = batches.order(order_key), jnp.arange(-(-max(SIZES) // BATCH))
    return jax.lax.map(lambda i: batches.take(jax.random.fold_in(batch_key, i), order, i, hyper), numbers)


def reference_training(tiny, key, state, subset, client):
    """One client's epoch as a Python loop; the last batch holds only the samples that are there."""
    slot_key = jax.random.fold_in(jax.random.fold_in(key, subset), client)
    batches = jax.device_get(batches_of(tiny.algorithm(), tiny.data, tiny.hyper, slot_key, client))
    model, teacher = state.model, state.initial_model
    memory = sgd(tiny.hyper, 0.0).init(model["params"])
    for number, first in enumerate(range(0, SIZES[client], BATCH)):
        there = min(BATCH, SIZES[client] - first)
        views = {name: view[number, ..., :there] for name, view in batches.views.items()}
        labels = batches.labels[number, :there]
        model, teacher, memory = reference_step(
            tiny.network, LABELED[client], model, teacher, memory, views, labels, number, tiny.hyper
        )
    return model, teacher


@pytest.fixture(scope="module")
def looped():
    """A round as a Python loop over clients in float64: subsets that share a client, and a sample alone in a batch."""
    with jax.enable_x64(True):
        tiny = Tiny()
        state = tiny.state(tiny.algorithm())
        key = jax.random.split(jax.random.fold_in(jax.random.fold_in(state.key, 1), 0))[1]
        slots = [(subset, client) for subset, row in enumerate(SUBSETS) for client in row]
        trained = [reference_training(tiny, key, state, *slot) for slot in slots]
        models = jax.tree.map(
            lambda *leaves: jnp.stack(leaves).reshape(2, 3, *leaves[0].shape), *(model for model, _ in trained)
        )
        ids = jnp.array(SUBSETS)
        members = Members(tiny.data.sizes[ids], tiny.data.labeled[ids], jnp.ones(ids.shape, bool))
        consensus = jax.jit(jax.vmap(sub_consensus, in_axes=(0, 0, None)))(models, members, tiny.hyper)
        teachers = {client: teacher for (_, client), (_, teacher) in zip(slots, trained, strict=True)}
        return tiny, consensus, global_mean(consensus, state.model), teachers


AXES = {"one at a time": ClientAxis(1), "two at once": ClientAxis(2), "two devices": two_devices(2)}


@pytest.mark.parametrize("axis", ["one at a time", pytest.param("two at once", marks=pytest.mark.slow), "two devices"])
def test_batched_training_of_ragged_clients_equals_a_loop_over_clients(x64, looped, axis):
    tiny, consensus, model, teachers = looped
    algorithm = tiny.algorithm(method=Method(sample=FixedSubsets(SUBSETS), aggregate=sub_consensus), axis=AXES[axis])
    state, report = once(algorithm, tiny.state(algorithm), tiny.data, tiny.hyper)
    np.testing.assert_allclose(report.distances, consensus.distances, rtol=1e-8)  # of each client's model
    np.testing.assert_allclose(report.weights, consensus.weights, rtol=1e-8)
    chex.assert_trees_all_close(state.model, model, atol=1e-9)
    for client, teacher in teachers.items():  # of the client's last slot
        kept = jax.tree.map(lambda leaf, c=client: leaf[c], state.clients.teacher)
        chex.assert_trees_all_close(kept, teacher, atol=1e-9)


@pytest.mark.parametrize("begins", ["initial", "first-selected"])
def test_only_a_teacher_that_began_untrained_takes_over_the_batch_statistics_of_the_global_model(begins):
    tiny = Tiny(teacher_init=begins)
    algorithm = tiny.algorithm(method=Method(sample=FixedSubsets(SUBSETS), aggregate=sub_consensus))
    first = tiny.state(algorithm)
    second, _ = once(algorithm, first, tiny.data, tiny.hyper)
    third, _ = once(algorithm, second, tiny.data, tiny.hyper)
    expected = (second if begins == "initial" else first).model["batch_stats"]
    for client in (0, 2, 3):  # without labels
        kept = jax.tree.map(lambda leaf, c=client: leaf[c], third.clients.teacher["batch_stats"])
        chex.assert_trees_all_equal(kept, expected)
    moved = jax.tree.map(lambda new, old: jnp.abs(new - old).max(), second.model, first.model)
    assert min(jax.tree.leaves(moved["batch_stats"])) > 0
