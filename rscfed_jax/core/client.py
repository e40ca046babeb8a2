"""Local training of one client: SGD over its own samples, with a mean teacher beside it.

Pure functions of one client; `rscfed_jax.core.client_axis` runs many of them at once.
"""

from functools import partial

import jax
import jax.numpy as jnp
import optax

from rscfed_jax.config import Hyper
from rscfed_jax.core.algorithm import Algorithm
from rscfed_jax.core.batches import OBJECTIVE, Batches, holding_of, prepare
from rscfed_jax.core.method import Pause, Sum
from rscfed_jax.core.objective import Step, Told, float_type
from rscfed_jax.core.optimizer import ema, ema_keep, init_client, scheduled, sgd, toward
from rscfed_jax.core.schedule import NOBODY
from rscfed_jax.core.trees import added, all_finite, choose
from rscfed_jax.core.types import Array, Broadcast, ClientState, FederatedData, Losses, Model, Slot, Trained

# What a slot's key is folded with for draws of their own, far from the numbers of epochs.
PREPARATION, ATTACK = 2**31 - 1, 2**31 - 2


def train_slot(
    algorithm: Algorithm,
    slot: Slot,
    before: ClientState | None,
    broadcast: Broadcast,
    data: FederatedData,
    hyper: Hyper,
) -> tuple[Trained, ClientState | None]:
    """Trains one client for one subset, with randomness from (seed, round, subset, client) and nothing else.

    A client whose model is not finite sends the global model and keeps its earlier state: zero times NaN is NaN. So
    does one that does not answer; it trains nothing. A client that keeps no state begins anew, its teacher as the
    global model. A teacher that began as the initial model takes over the batch statistics of the global model.
    """
    key = jax.random.fold_in(jax.random.fold_in(broadcast.key, slot.subset), slot.client)
    model = broadcast.model
    started = before or init_client(model, hyper, with_teacher=algorithm.with_teacher)
    if algorithm.with_teacher:
        assert started.teacher is not None
        start = model if before is None else choose(hyper.teacher_from_selection > 0, model, broadcast.initial_model)
        teacher = choose(started.step == 0, start, started.teacher)
        # Nothing moves a teacher's batch statistics, and those of an untrained model would stay as they are.
        fresh = choose(hyper.teacher_from_selection > 0, statistics_of(teacher), statistics_of(model))
        started = started._replace(teacher={**teacher, **fresh})
    working = jnp.where(slot.answers, slot.row, NOBODY)
    after_model, after, told = train_client(algorithm, key, working, started, broadcast, data, hyper)
    sent = algorithm.faults.sent(jax.random.fold_in(key, ATTACK), slot.attacks, after_model, model, hyper)
    healthy = slot.answers & all_finite(sent)
    trained = Trained(choose(healthy, sent, model), *told, healthy, slot.answers)
    return trained, before and choose(healthy, after, before)


def statistics_of(model: Model) -> Model:
    """What a model holds besides its parameters: batch statistics, where the network has them."""
    return {name: part for name, part in model.items() if name != "params"}


def train_client(
    algorithm: Algorithm,
    key: Array,
    row: Array,
    started: ClientState,
    broadcast: Broadcast,
    data: FederatedData,
    hyper: Hyper,
) -> tuple[Model, ClientState, tuple[Losses, dict[str, Array], Array | None]]:
    """Trains a client from the model that was sent: each of its samples once an epoch, in a fresh order.

    The last short batch is kept. The loop's length is the client's own, so that a small client costs little. Told are
    the losses, means over the steps, the news that the method declares, and how its pseudo-labels were judged.
    """
    method, network = algorithm.method, algorithm.network
    holding = holding_of(row, data)
    learning_rate = scheduled(jnp.where(holding.labeled, hyper.lr_labeled, hyper.lr_unlabeled), broadcast.round, hyper)
    epochs = (
        algorithm.epochs if method.epochs is None else jnp.asarray(method.epochs(holding.labeled, hyper), jnp.int32)
    )
    see = partial(  # what every step of this client knows
        Step,
        teacher=broadcast.model if method.teacher == "frozen" else started.teacher if algorithm.with_teacher else None,
        sent=broadcast.model,
        round=broadcast.round,
        memory=broadcast.memory,
        size=holding.size,
        class_counts=holding.class_counts,
        prior=log_shares(holding.class_counts) if algorithm.balanced else None,
    )
    batches = Batches(algorithm, holding, data)
    if method.prepare is not None:
        prepared = prepare(batches, jax.random.fold_in(key, PREPARATION), see, hyper)
        batches, see = batches._replace(prepared=prepared), partial(see, statistics=prepared.statistics)
    steps = batches.steps()

    def epoch(number: Array, carry: tuple) -> tuple:
        order_key, batch_key = jax.random.split(jax.random.fold_in(key, number))
        order = batches.order(order_key)

        def step(i: Array, carry: tuple) -> tuple:
            model, client, tally, losses, news, judged = carry
            step_key = jax.random.fold_in(batch_key, i)
            batch = batches.take(step_key, order, i, hyper)
            now = see(key=jax.random.fold_in(step_key, OBJECTIVE), batch=batch, tally=tally)
            model, client, told = train_step(algorithm, model, client, now, learning_rate, hyper)
            losses = jax.tree.map(jnp.add, losses, told.losses)
            tally = tally if told.tally is None else told.tally
            if told.pseudo is not None and judged is not None:
                judged += batches.judged(batch, told.pseudo)
            return model, client, tally, losses, added(news, told.news), judged

        model, client, tally, losses, news, judged = jax.lax.fori_loop(0, steps, step, carry)
        if method.between is not None:
            model, tally = method.between(Pause(number, holding.labeled, broadcast.model), model, tally, hyper)
        return model, client, tally, losses, news, judged

    dtype = float_type(broadcast.model)
    tally = None if method.tally is None else method.tally(network, broadcast.model)
    none = Losses(*(jnp.zeros((), dtype) for _ in Losses._fields))
    unjudged = jnp.zeros((len(holding.class_counts), 3), dtype) if method.judged else None
    begin = (broadcast.model, started, tally, none, method.zero_news(network, dtype), unjudged)
    model, after, _, losses, news, judged = jax.lax.fori_loop(0, epochs, epoch, begin)

    def mean(total: Array) -> Array:
        return total / jnp.maximum(steps * epochs, 1)

    kinds = method.news(network)
    news = {name: total if isinstance(kinds[name], Sum) else mean(total) for name, total in news.items()}
    if batches.prepared is not None:
        if means := [name for name in batches.prepared.news if not isinstance(kinds.get(name), Sum)]:
            raise ValueError(f"the news {means[0]} of `prepare` must be declared as a Sum")
        news = added(news, batches.prepared.news)
        if not method.pseudo_labels:  # else the objective's labels are those that count
            judged = judged + batches.prepared.judged
    return model, after, (jax.tree.map(mean, losses), news, judged)


def log_shares(class_counts: Array) -> Array:
    """[classes] logarithms of the classes' shares; an absent class is very unlikely, not impossible."""
    return jnp.log(class_counts / jnp.maximum(jnp.sum(class_counts), 1) + 1e-12)


def train_step(
    algorithm: Algorithm, model: Model, client: ClientState, step: Step, learning_rate: Array, hyper: Hyper
) -> tuple[Model, ClientState, Told]:
    """One step of SGD on the student, then the teacher follows; also returns what the objective reported."""
    params = model["params"]
    if algorithm.with_teacher:
        step = step._replace(teacher=client.teacher)

    def loss(params: Model) -> tuple[Array, Told]:
        return algorithm.method.objective(algorithm.network, {**model, "params": params}, step, hyper)

    grads, told = jax.grad(loss, has_aux=True)(params)
    if algorithm.proximal:
        grads = toward(grads, params, step.sent["params"], mu=hyper.prox_mu)
    updates, optimizer = sgd(hyper, learning_rate).update(grads, client.optimizer, params)
    params = optax.apply_updates(params, updates)
    client = client._replace(optimizer=optimizer)
    if algorithm.with_teacher:
        assert client.teacher is not None
        keep = ema_keep(client.step, hyper)
        client = client._replace(teacher=ema(client.teacher, params, keep), step=client.step + 1)
    return {"params": params, **told.stats}, client, told
