"""What a method may bring: a toy method for each part, and what it must do."""

import dataclasses
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rscfed_jax.core.aggregation import Consensus, by_data_amount, l2_distance, weighted_mean
from rscfed_jax.core.augment import as_prepared, weak
from rscfed_jax.core.batches import Batches, holding_of
from rscfed_jax.core.method import Finish, Mean, Method, Separate, Sum, Verdict
from rscfed_jax.core.objective import Told, cross_entropy, mean_teacher_loss, student_logits
from rscfed_jax.core.round import one_round
from rscfed_jax.core.sampling import AllClients
from rscfed_jax.core.types import Losses
from tests.helpers import BATCH, CLASSES, LABELED, SIZES, FixedSubsets, Tiny, ragged_federation

once = jax.jit(one_round, static_argnames="algorithm")
everyone = partial(Method, sample=AllClients(), teacher="none")
STEPS = [-(-size // BATCH) for size in SIZES]


def told(network, model, step, *, loss=None, **more):
    """A loss of nothing, unless told otherwise, and what the toy wants to tell."""
    _, stats = student_logits(network, model, next(iter(step.batch.views.values())), step.batch.valid)
    zero = jnp.zeros(()) if loss is None else loss
    return zero, Told(stats, Losses(zero, jnp.zeros_like(zero)), **more)


def run(method, tiny=None, state=None, **more):
    tiny = tiny or Tiny(ema_warmup=False)
    algorithm = tiny.algorithm(method=method, **more)
    return once(algorithm, state or tiny.state(algorithm), tiny.data, tiny.hyper)


def keeps_news(server, members, hyper):
    """The server remembers what the clients told."""
    return server.mean, members.news


# Views


def dark(key, pixels):
    """A view of black pixels with one random value."""
    return jnp.zeros_like(pixels) + jnp.floor(jax.random.uniform(key, (pixels.shape[3],)) * 256)


def sees_views(network, model, step, hyper):
    """Tells the mean of each view over the pixels of the first sample."""
    means = {name: jnp.mean(view[..., 0]) for name, view in step.batch.views.items()}
    flat = {f"{name}_spread": jnp.std(view[0, ..., 0]) for name, view in step.batch.views.items()}
    return told(network, model, step, news=means | flat)


def test_an_objective_sees_the_views_that_the_method_names():
    names = ("calm", "night")
    method = everyone(
        sample=FixedSubsets(((1,),)),
        views={"calm": weak, "night": dark},
        objective=sees_views,
        news=lambda network: {name: Mean() for base in names for name in (base, f"{base}_spread")},
        memory=lambda network, model: {name: jnp.zeros((1, 1)) for b in names for name in (b, f"{b}_spread")},
        serve=keeps_news,
    )
    state, _ = run(method)
    assert float(state.memory["night_spread"][0, 0]) < 1e-4  # black but for one value a sample
    assert float(state.memory["calm_spread"][0, 0]) > 0.1
    assert float(state.memory["night"][0, 0]) != float(state.memory["calm"][0, 0])


# Key, sent model, class counts, round and memory


def tells_context(network, model, step, hyper):
    moved = jax.tree.map(lambda new, old: jnp.sum(jnp.abs(new - old)), model["params"], step.sent["params"])
    away = sum(jax.tree.leaves(moved))
    logits, _ = student_logits(network, model, step.batch.views["student"], step.batch.valid)
    loss = cross_entropy(logits, step.batch.labels, step.batch.valid & (step.batch.labels >= 0))
    news = {
        "draw": jax.random.uniform(step.key),
        "squared": jax.random.uniform(step.key) ** 2,
        "away": away,
        "counts": step.class_counts.astype(jnp.float32),
        "round": step.round.astype(jnp.float32),
    }
    return told(network, model, step, loss=loss, news=news)


def context_news(network):
    return {"draw": Sum(), "squared": Sum(), "away": Sum(), "counts": Mean((network.classes,)), "round": Mean()}


def test_an_objective_has_a_key_of_its_own_the_sent_model_the_class_counts_and_the_round():
    method = everyone(
        objective=tells_context,
        news=context_news,
        memory=lambda network, model: {
            name: jnp.zeros((1, 5, *kind.shape)) for name, kind in context_news(network).items()
        },
        serve=keeps_news,
    )
    tiny = Tiny()
    state, _ = run(method, tiny)
    news = jax.tree.map(lambda leaf: np.asarray(leaf[0]), state.memory)
    # Draws differ from step to step: the square of their sum is not the sum of their squares times the steps.
    several = np.array(STEPS) > 1
    spread = news["squared"] - news["draw"] ** 2 / STEPS
    assert (spread[several] > 1e-4).all()
    assert (news["away"][~several] == 0).all()  # in its first step a client has the model that was sent
    moving = several & np.array(LABELED)
    assert (news["away"][moving] > 0).all()
    federation = tiny.federation
    visible = [
        np.bincount(federation.dataset.train_labels[own][seen], minlength=CLASSES)
        for own, seen in zip(federation.samples, federation.label_visible, strict=True)
    ]
    np.testing.assert_allclose(news["counts"], visible, rtol=1e-6)
    again, _ = run(method, tiny, state=state)
    np.testing.assert_allclose(again.memory["round"][0], 1)


# News as means and sums, and aggregation that sees them


def counts_valid(network, model, step, hyper):
    there = jnp.sum(step.batch.valid).astype(jnp.float32)
    by_label = jnp.zeros(CLASSES).at[jnp.maximum(step.batch.labels, 0)].add(step.batch.valid & (step.batch.labels >= 0))
    return told(network, model, step, news={"samples": there, "per_step": there, "by_label": by_label})


def count_news(network):
    return {"samples": Sum(), "per_step": Mean(), "by_label": Sum((network.classes,))}


def by_news(models, members, hyper):
    """Weights by the samples that clients say they have seen, not by their data amounts."""
    weights = members.news["samples"] ** 2 * members.healthy
    weights /= jnp.sum(weights)
    model = weighted_mean(models, weights)
    return Consensus(model, weights, l2_distance(models, model))


def test_news_are_sums_and_means_of_any_shape_and_aggregation_sees_them():
    method = everyone(
        objective=counts_valid,
        aggregate=by_news,
        news=count_news,
        memory=lambda network, model: {
            name: jnp.zeros((1, 5, *kind.shape)) for name, kind in count_news(network).items()
        },
        serve=keeps_news,
    )
    tiny = Tiny()
    state, report = run(method, tiny)
    np.testing.assert_allclose(state.memory["samples"][0], SIZES)
    np.testing.assert_allclose(state.memory["per_step"][0], np.array(SIZES) / STEPS)
    np.testing.assert_allclose(state.memory["by_label"][0], tiny.data.class_counts)
    squares = np.array(SIZES, float) ** 2
    np.testing.assert_allclose(report.weights[0], squares / squares.sum(), rtol=1e-5)


def test_news_that_are_not_declared_are_refused():
    with pytest.raises(ValueError, match="by_label, per_step, samples are not declared"):
        run(everyone(objective=counts_valid))


# Teacher


def tells_teacher(network, model, step, hyper):
    distance = sum(
        jnp.sum(jnp.abs(a - b)) for a, b in zip(jax.tree.leaves(step.teacher), jax.tree.leaves(step.sent), strict=True)
    )
    logits, stats = student_logits(network, model, step.batch.views["student"], step.batch.valid)
    loss = jnp.mean(logits**2)
    return loss, Told(stats, Losses(loss, distance))


@pytest.mark.parametrize(("teacher", "moves"), [("frozen", False), ("ema", True)])
def test_a_teacher_is_the_frozen_model_or_the_clients_own_average(teacher, moves):
    tiny = Tiny(ema=0.5, ema_warmup=False)
    method = Method(sample=FixedSubsets(((3,),)), teacher=teacher, objective=tells_teacher)
    state, report = run(method, tiny)
    assert (float(report.consistency_loss) > 0) == moves
    assert (state.clients.teacher is not None) == moves


def test_without_a_teacher_an_objective_gets_none_and_clients_keep_none():
    def sees_none(network, model, step, hyper):
        assert step.teacher is None
        return mean_teacher_loss(network, model, step, hyper)

    state, _ = run(everyone(objective=sees_none))
    assert state.clients.teacher is None


# Epochs by kind of client


def test_epochs_go_by_the_kind_of_client():
    method = everyone(
        objective=counts_valid,
        epochs=lambda labeled, hyper: jnp.where(labeled, hyper.own["labeled_epochs"], 1),
        news=count_news,
        memory=lambda network, model: {
            name: jnp.zeros((1, 5, *kind.shape)) for name, kind in count_news(network).items()
        },
        serve=keeps_news,
    )
    tiny = Tiny(own={"labeled_epochs": 3.0})
    state, _ = run(method, tiny)
    np.testing.assert_allclose(state.memory["samples"][0], np.array(SIZES) * np.where(LABELED, 3, 1))
    # The mean is still that over the steps.
    np.testing.assert_allclose(state.memory["per_step"][0], np.array(SIZES) / STEPS, rtol=1e-6)


# The server: a step after the mean, a memory that holds a model


def momentum(server, members, hyper):
    """FedAvgM: the memory is the velocity, which has the form of a model."""
    velocity = jax.tree.map(lambda v, old, new: 0.5 * v + (old - new), server.memory, server.before, server.mean)
    return jax.tree.map(jnp.subtract, server.before, velocity), velocity


def test_the_server_takes_a_step_after_the_mean_and_remembers_a_model():
    tiny = Tiny()
    plain, served = (
        everyone(),
        everyone(memory=lambda network, model: jax.tree.map(jnp.zeros_like, model), serve=momentum),
    )
    states = {}
    for name, method in (("plain", plain), ("served", served)):
        state, _ = run(method, tiny)
        states[name] = [state, run(method, tiny, state=state)[0]]
    # Without velocity the first step is the mean itself.
    chex.assert_trees_all_close(states["served"][0].model, states["plain"][0].model, atol=1e-6)
    start, first, second = tiny.state(tiny.algorithm(method=plain)).model, *(s.model for s in states["served"])
    mean = states["plain"][1].model
    expected = jax.tree.map(lambda a, b, c: b - (0.5 * (a - b) + (b - c)), start, first, mean)
    chex.assert_trees_all_close(second, expected, atol=1e-5)


# A second phase


def falls(network, model, step, hyper):
    """A loss with the gradient 1 in each bias of the last layer: every step moves them down by the learning rate."""
    return told(network, model, step, loss=jnp.sum(model["params"]["l3"]["bias"]))


def test_labeled_clients_train_on_from_the_aggregate():
    tiny = Tiny(momentum=0.0, weight_decay=0.0, clip_norm=1e9, labeled_share="off")
    method = everyone(objective=falls, finish=Finish(objective=falls, epochs=2))
    before = tiny.state(tiny.algorithm(method=method)).model["params"]["l3"]["bias"]
    state, _ = run(method, tiny)
    sizes, labeled, steps = np.array(SIZES), np.array(LABELED), np.array(STEPS)
    rates = np.where(labeled, tiny.hyper.lr_labeled, tiny.hyper.lr_unlabeled)
    first = (sizes * rates * steps).sum() / sizes.sum()
    second = (sizes * rates * steps * 2)[labeled].sum() / sizes[labeled].sum()
    np.testing.assert_allclose(before - state.model["params"]["l3"]["bias"], first + second, rtol=1e-4)
    assert (int(state.models_down), int(state.models_up)) == (5 + 2, 5 + 2)


# Preparation


def odd_ones(network, step, hyper):
    """Labels every sample by the brightness of its prepared view, and keeps those whose label is odd."""
    bright = jnp.mean(step.batch.views["student"], axis=(0, 1, 2))
    labels = (jnp.abs(bright * 100).astype(jnp.int32)) % CLASSES
    there = step.batch.valid
    return Verdict(
        labels, labels % 2 == 1, statistics=jnp.sum(there).astype(jnp.float32), news={"asked": jnp.sum(there) * 1.0}
    )


def checks_preparation(network, model, step, hyper):
    """Tells how many samples it saw, how many had the label that the view gives now, and what was summed up."""
    batch = step.batch
    bright = jnp.mean(batch.views["student"], axis=(0, 1, 2))
    now = (jnp.abs(bright * 100).astype(jnp.int32)) % CLASSES
    unseen = batch.labels < 0
    same = jnp.where(unseen, batch.pseudo_labels == now, batch.pseudo_labels == batch.labels)
    news = {
        "seen": jnp.sum(batch.valid) * 1.0,
        "same": jnp.sum(batch.valid & same) * 1.0,
        "odd": jnp.sum(batch.valid & unseen & (batch.pseudo_labels % 2 == 1)) * 1.0,
        "sizes": step.statistics,
    }
    return told(network, model, step, news=news)


def prepared_news(network):
    return {"asked": Sum(), "seen": Sum(), "same": Sum(), "odd": Sum(), "sizes": Mean()}


def test_preparation_labels_and_keeps_samples_and_the_steps_follow():
    method = everyone(
        views={"student": as_prepared},
        prepare=odd_ones,
        objective=checks_preparation,
        news=prepared_news,
        memory=lambda network, model: {name: jnp.zeros((1, 5)) for name in prepared_news(network)},
        serve=keeps_news,
    )
    state, _ = run(method)
    news = jax.tree.map(lambda leaf: np.asarray(leaf[0]), state.memory)
    np.testing.assert_allclose(news["asked"], SIZES)  # each sample once
    labeled = np.array(LABELED)
    np.testing.assert_allclose(news["seen"][labeled], np.array(SIZES)[labeled])  # visible labels are kept
    np.testing.assert_allclose(news["odd"][~labeled], news["seen"][~labeled])  # and of the others the odd ones
    assert 0 < news["seen"][~labeled].sum() < np.array(SIZES)[~labeled].sum()
    np.testing.assert_allclose(news["same"], news["seen"])  # on the very views that were labeled
    trained = news["seen"] > 0
    np.testing.assert_allclose(news["sizes"][trained], np.array(SIZES)[trained])


def keep_nothing(network, step, hyper):
    return Verdict(jnp.zeros_like(step.batch.labels), jnp.zeros_like(step.batch.valid))


def test_a_client_that_keeps_no_sample_takes_no_step():
    tiny = Tiny()
    algorithm = tiny.algorithm(method=everyone(prepare=keep_nothing))
    holding = holding_of(jnp.int32(3), tiny.data)  # 25 samples without a label
    assert int(Batches(algorithm, holding, tiny.data).steps()) == 4
    state, _ = run(everyone(sample=FixedSubsets(((3,),)), prepare=keep_nothing), tiny)
    chex.assert_trees_all_equal(state.model, tiny.state(algorithm).model)


def asks_teacher(network, step, hyper):
    assert step.teacher is not None
    return Verdict(jnp.zeros_like(step.batch.labels), step.batch.valid, news={"asked": jnp.sum(step.batch.valid) * 1.0})


def test_preparation_sees_the_clients_own_teacher_and_tells_sums_alone():
    method = Method(sample=FixedSubsets(((3,),)), prepare=asks_teacher, news=lambda network: {"asked": Sum()})
    run(method)
    with pytest.raises(ValueError, match="asked of `prepare` must be declared as a Sum"):
        run(dataclasses.replace(method, news=lambda network: {"asked": Mean()}))


# A tally through the steps, and a hook between epochs


def counts_steps(network, model, step, hyper):
    steps = step.tally["steps"] + 1
    logits, stats = student_logits(network, model, step.batch.views["student"], step.batch.valid)
    loss = cross_entropy(logits, step.batch.labels, step.batch.valid & (step.batch.labels >= 0))
    tally = {**step.tally, "steps": steps}
    return loss, Told(stats, Losses(loss, loss * 0), news={"steps": steps.astype(jnp.float32)}, tally=tally)


def blends(pause, model, tally, hyper):
    """After epoch 0 the tally records the model; after epoch 1 the client goes back to it."""
    first = pause.epoch == 0
    record = jax.tree.map(lambda new, old: jnp.where(first, new, old), model, tally["record"])
    model = jax.tree.map(lambda new, old: jnp.where(first, new, old), model, record)
    return model, {"steps": tally["steps"], "record": record}


def test_a_tally_goes_through_the_steps_and_a_hook_runs_between_epochs():
    tiny = Tiny()
    method = everyone(
        objective=counts_steps,
        tally=lambda network, model: {"steps": jnp.int32(0), "record": model},
        between=blends,
        news=lambda network: {"steps": Mean()},
        memory=lambda network, model: {"steps": jnp.zeros((1, 5))},
        serve=keeps_news,
    )
    state, _ = run(method, tiny, epochs=2)
    steps = 2 * np.array(STEPS)
    np.testing.assert_allclose(state.memory["steps"][0], (steps + 1) / 2)  # the mean of 1, 2, ..., steps
    # It went back to the model after epoch 0, so one epoch without the hook gives the same.
    once_only, _ = run(dataclasses.replace(method, between=None), tiny, epochs=1)
    chex.assert_trees_all_close(state.model, once_only.model, atol=1e-6)


# Labeled and unlabeled samples in batches of their own


def counts_kinds(network, model, step, hyper):
    has_label = step.batch.labels >= 0
    news = {
        "labeled": jnp.sum(step.batch.valid & has_label) * 1.0,
        "others": jnp.sum(step.batch.valid & ~has_label) * 1.0,
        "in_order": jnp.all(jnp.where(step.batch.valid[:3], has_label[:3], True)) * 1.0,
        "steps": jnp.ones(()),
    }
    return told(network, model, step, news=news)


def test_labeled_and_unlabeled_samples_come_in_batches_of_their_own():
    rng = np.random.default_rng(0)
    federation = ragged_federation()
    visible = [rng.permutation(size) < count for size, count in zip(SIZES, (1, 5, 8, 2, 0), strict=True)]
    tiny = Tiny(federation._replace(label_visible=visible))
    method = everyone(
        batches=Separate(labeled=3, unlabeled=5),
        objective=counts_kinds,
        news=lambda network: {name: Sum() for name in ("labeled", "others", "in_order", "steps")},
        memory=lambda network, model: {n: jnp.zeros((1, 5)) for n in ("labeled", "others", "in_order", "steps")},
        serve=keeps_news,
    )
    state, _ = run(method, tiny)
    news = jax.tree.map(lambda leaf: np.asarray(leaf[0]), state.memory)
    unlabeled = np.array(SIZES) - (1, 5, 8, 2, 0)
    steps = np.where(unlabeled > 0, -(-unlabeled // 5), -(-8 // 3))
    np.testing.assert_allclose(news["steps"], steps)
    np.testing.assert_allclose(news["others"], unlabeled)  # each once
    np.testing.assert_allclose(news["labeled"], np.minimum((1, 5, 8, 2, 0), 3) * steps)  # again and again
    np.testing.assert_allclose(news["in_order"], steps)


# All of it


def test_methods_of_equal_parts_are_equal_and_hash_alike():
    one, other = (everyone(views={"student": weak}, aggregate=by_data_amount) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != dataclasses.replace(one, name="mine")
