"""Local training of one client: SGD over its own samples, with a mean teacher beside it.

Pure functions of one client; `rscfed_jax.clients` runs many of them at once.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from rscfed_jax.config import Hyper
from rscfed_jax.data.augment import augmented_batch
from rscfed_jax.data.table import FederatedData
from rscfed_jax.local.objective import Batch, Bulletin, Losses, Objective, mean_teacher_loss
from rscfed_jax.types import Array, Model


class ClientState(NamedTuple):
    """What a client keeps from one selection to the next; stacked over clients it has a leading axis of N."""

    teacher: Model | None  # None in a federation without unlabeled samples
    optimizer: optax.OptState
    step: Array  # int32: mean-teacher steps in the client's whole life; 0: the teacher has not started


@dataclass(frozen=True)
class LocalTraining:
    """What is static about local training."""

    network: nn.Module
    image_size: int
    batch_size: int
    epochs: int = 1
    with_teacher: bool = True
    objective: Objective = mean_teacher_loss
    two_views: bool = False  # the objective wants two augmentations even without a teacher


def clip_by_global_norm(max_norm: Array) -> optax.GradientTransformation:
    """Scales a gradient down to `max_norm` by PyTorch's rule, which adds 1e-6 to the norm it divides by."""

    def update(updates: Model, state: optax.EmptyState, params: Model | None = None) -> tuple[Model, optax.EmptyState]:
        del params
        scale = jnp.minimum(1.0, max_norm / (optax.tree.norm(updates) + 1e-6))
        return jax.tree.map(lambda u: u * scale, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def sgd(hyper: Hyper, learning_rate: Array) -> optax.GradientTransformation:
    """Clipping, then L2 weight decay added to the gradient, then momentum: the order of PyTorch's SGD."""
    return optax.chain(
        clip_by_global_norm(hyper.clip_norm),
        optax.add_decayed_weights(hyper.weight_decay),
        optax.sgd(learning_rate, momentum=hyper.momentum),
    )


def init_client(model: Model, hyper: Hyper, *, with_teacher: bool) -> ClientState:
    """The state of a client that was never selected; its teacher starts with the first selection."""
    return ClientState(
        teacher=jax.tree.map(jnp.zeros_like, model) if with_teacher else None,
        optimizer=sgd(hyper, hyper.lr_labeled).init(model["params"]),
        step=jnp.int32(0),
    )


def ema(teacher: Model, params: Model, keep: Array) -> Model:
    """Equation 4: the teacher's parameters move toward the student's; its batch statistics stay."""
    mixed = jax.tree.map(lambda t, p: keep * t + (1 - keep) * p, teacher["params"], params)
    return {**teacher, "params": mixed}


def ema_keep(step: Array, hyper: Hyper) -> Array:
    """The keep factor of the EMA in the client's step number `step`, counted from 0 over its whole life.

    With the published warm-up the teacher becomes the student in step 0, then follows more and more slowly.
    """
    early = jnp.minimum(1 - jnp.ones_like(hyper.ema) / (step + 1), hyper.ema)
    return jnp.where(hyper.ema_warmup > 0, early, hyper.ema)


def draw_batch(
    key: Array, task: LocalTraining, data: FederatedData, samples: Array, valid: Array, hyper: Hyper
) -> Batch:
    """Augments `samples` [B]: once for the student, once more for the teacher."""
    luck = jax.random.uniform(key, (2, 3, len(samples)), jnp.float32)
    rows = data.rows[samples]

    def view(number: int) -> Array:
        return augmented_batch(
            luck[number], data, rows, size=task.image_size, flip_rate=hyper.flip_rate, dtype=task.network.dtype
        )

    return Batch(
        student_view=view(0),
        teacher_view=view(1) if task.with_teacher or task.two_views else None,
        labels=data.labels[samples],
        valid=valid,
    )


def train_step(
    task: LocalTraining,
    model: Model,
    client: ClientState,
    batch: Batch,
    learning_rate: Array,
    hyper: Hyper,
    bulletin: Bulletin,
) -> tuple[Model, ClientState, tuple[Losses, Any]]:
    """One step of SGD on the student, then the teacher follows; also returns losses and news for the server."""
    params = model["params"]
    stats = {name: value for name, value in model.items() if name != "params"}
    teacher = client.teacher if task.with_teacher else None

    def loss(params: Model) -> tuple[Array, tuple[Model, Losses, Any]]:
        return task.objective(task.network, params, stats, teacher, batch, hyper, bulletin)

    grads, (stats, losses, news) = jax.grad(loss, has_aux=True)(params)
    updates, optimizer = sgd(hyper, learning_rate).update(grads, client.optimizer, params)
    params = optax.apply_updates(params, updates)
    client = client._replace(optimizer=optimizer)
    if teacher is not None:
        keep = ema_keep(client.step, hyper)
        client = client._replace(teacher=ema(teacher, params, keep), step=client.step + 1)
    return {"params": params, **stats}, client, (losses, news)


def train_client(
    task: LocalTraining,
    key: Array,
    model: Model,
    client: ClientState,
    client_id: Array,
    data: FederatedData,
    hyper: Hyper,
    bulletin: Bulletin,
) -> tuple[Model, ClientState, tuple[Losses, Any]]:
    """Trains one client from `model`: each of its samples once an epoch, in a fresh order, the last short batch kept.

    The loop's length is the client's own, so that a small client costs little. A client id out of range trains nothing.
    Losses and news are means over the steps.
    """
    size = data.sizes.at[client_id].get(mode="fill", fill_value=0)
    start = data.starts.at[client_id].get(mode="fill", fill_value=0)
    labeled = data.labeled.at[client_id].get(mode="fill", fill_value=False)
    learning_rate = jnp.where(labeled, hyper.lr_labeled, hyper.lr_unlabeled)
    steps = (size + task.batch_size - 1) // task.batch_size

    def epoch(number: Array, carry: tuple) -> tuple:
        order_key, batch_key = jax.random.split(jax.random.fold_in(key, number))
        order = random_order(order_key, data.positions, size)

        def step(i: Array, carry: tuple) -> tuple:
            model, client, total = carry
            positions = i * task.batch_size + jnp.arange(task.batch_size)
            valid = positions < size
            samples = start + jnp.where(valid, order.at[positions].get(mode="clip"), 0)
            batch = draw_batch(jax.random.fold_in(batch_key, i), task, data, samples, valid, hyper)
            model, client, told = train_step(task, model, client, batch, learning_rate, hyper, bulletin)
            return model, client, jax.tree.map(jnp.add, total, told)

        return jax.lax.fori_loop(0, steps, step, carry)

    none = (Losses(*(jnp.zeros_like(hyper.tau) for _ in Losses._fields)), jax.tree.map(jnp.zeros_like, bulletin.memory))
    model, client, total = jax.lax.fori_loop(0, task.epochs, epoch, (model, client, none))
    return model, client, jax.tree.map(lambda t: t / jnp.maximum(steps * task.epochs, 1), total)


def random_order(key: Array, positions: Array, size: Array) -> Array:
    """[P] the numbers 0 to size - 1 in random order, then the rest of the P `positions`."""
    draws = jax.random.uniform(key, positions.shape, jnp.float32)
    return jnp.argsort(jnp.where(positions < size, draws, 2.0))
