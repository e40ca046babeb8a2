"""From a client's samples to batches: the order of an epoch, what each batch holds, who holds nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rscfed_jax.core.augment import as_prepared, centre, weak
from rscfed_jax.core.batches import Batches, Prepared, holding_of, luck_of_samples, random_order
from rscfed_jax.core.method import Method
from rscfed_jax.core.randaugment import strong
from rscfed_jax.core.schedule import NOBODY
from tests.helpers import BATCH, LABELED, SIZES, Tiny


@pytest.fixture(scope="module")
def tiny():
    return Tiny()


def batches_of(tiny, client, *, method=None):
    return Batches(tiny.algorithm(method=method), holding_of(jnp.int32(client), tiny.data), tiny.data)


@pytest.mark.parametrize("size", [1, 5, 12])
def test_an_epoch_visits_each_sample_once_in_another_order_each_time(size):
    orders = [random_order(jax.random.key(seed), jnp.arange(12) < size).tolist() for seed in range(2)]
    for order in orders:
        assert sorted(order[:size]) == list(range(size))
    assert size == 1 or orders[0] != orders[1]


def test_samples_that_come_later_stand_between_the_others_and_the_rest():
    first, later = jnp.arange(9) % 3 > 0, jnp.arange(9) > 4
    order = random_order(jax.random.key(0), first, later=later).tolist()
    assert sorted(order[:3]) == [1, 2, 4]
    assert sorted(order[3:6]) == [5, 7, 8]


def test_batches_hold_the_clients_own_samples_with_their_labels_and_the_last_one_is_short(tiny):
    for client in (0, 1):
        batches = batches_of(tiny, client)
        assert int(batches.steps()) == -(-SIZES[client] // BATCH)
        order = batches.order(jax.random.key(0))
        seen = []
        for number in range(int(batches.steps())):
            batch = batches.take(jax.random.key(1), order, jnp.int32(number), tiny.hyper)
            seen += batch.labels[batch.valid].tolist()
            assert set(batch.views) == {"student", "teacher"}
            assert all(view.shape == (3, 16, 16, BATCH) for view in batch.views.values())
        samples = tiny.federation.samples[client][np.asarray(order[: SIZES[client]])]
        assert seen == [tiny.federation.dataset.train_labels[s] if LABELED[client] else -1 for s in samples]


def test_the_views_of_a_sample_are_drawn_apart_and_anew_in_each_step(tiny):
    batches = batches_of(tiny, 3)
    order = batches.order(jax.random.key(0))
    one, other = (batches.take(jax.random.key(seed), order, jnp.int32(0), tiny.hyper).views for seed in (1, 2))
    assert jnp.abs(one["student"] - one["teacher"]).max() > 0
    assert jnp.abs(one["student"] - other["student"]).max() > 0


def inverted(key, pixels):
    return 255 - pixels


@pytest.mark.parametrize("precision", ["x32", "x64"])
def test_views_that_move_pixels_stand_beside_functions_for_one_client_or_several(request, precision):
    if precision == "x64":
        request.getfixturevalue("x64")
    tiny, key = Tiny(), jax.random.key(0)
    method = Method(name="views", views={"a": weak, "b": inverted, "c": strong})

    def take(client):
        batches = batches_of(tiny, client, method=method)
        return batches.take(key, batches.order(key), jnp.int32(0), tiny.hyper).views

    clients = jnp.array([1, 3], jnp.int32)
    together, take_one = jax.jit(jax.vmap(take))(clients), jax.jit(take)
    for number, client in enumerate(clients):
        alone = take_one(client)
        assert all(view.dtype == tiny.network.dtype for view in alone.values())
        assert len({view.tobytes() for view in map(np.asarray, alone.values())}) == 3
        for name, view in alone.items():
            np.testing.assert_array_equal(view, together[name][number])


def test_nobody_holds_nothing(tiny):
    batches = batches_of(tiny, NOBODY)
    assert int(batches.steps()) == 0
    assert not batches.holding.labeled
    assert not batches.holding.class_counts.any()


def test_the_luck_of_a_sample_does_not_depend_on_its_place_in_a_batch():
    key = jax.random.key(0)
    together, alone = luck_of_samples(key, jnp.array([4, 2, 9])), luck_of_samples(key, jnp.array([9, 9]))
    assert together.shape == (3, 3)
    np.testing.assert_array_equal(together[:, 2:], alone[:, :1])
    assert jnp.abs(together[:, 0] - together[:, 1]).max() > 0


def batch_of(tiny, client, views, **more):
    """The first batch of a client in the views of a method."""
    batches = batches_of(tiny, client, method=Method(views=views, **more))
    return batches, batches.take(jax.random.key(1), batches.order(jax.random.key(0)), jnp.int32(0), tiny.hyper)


def test_the_centre_is_the_same_view_every_time_and_never_flipped(tiny):
    batches, batch = batch_of(tiny, 3, {"centre": centre})
    images = tiny.data.images[tiny.data.image_ids[batches.holding.start + batch.positions]]
    start = (images.shape[1] - 16 + 1) // 2
    middle = np.asarray(images)[:, start : start + 16, start : start + 16].transpose(1, 2, 0)
    red = np.asarray(batch.views["centre"][0] * tiny.data.std[0] + tiny.data.mean[0])
    np.testing.assert_allclose(red, middle & 255, atol=1e-3)


def test_partners_are_samples_of_the_client_drawn_with_replacement(tiny):
    batches, batch = batch_of(tiny, 0, {"student": weak}, partners=True)  # it holds three samples
    positions = np.asarray(batch.partner.positions)
    assert positions.shape == (BATCH,)
    assert set(positions.tolist()) <= {0, 1, 2}
    labels = tiny.data.labels[batches.holding.start + positions]
    np.testing.assert_array_equal(batch.partner.labels, labels)
    assert batch_of(tiny, 0, {"student": weak})[1].partner is None


def test_a_prepared_view_is_that_of_the_preparation_unless_the_sample_has_a_label(tiny):
    for client in (3, 1):  # without labels, with labels
        batches, _ = batch_of(tiny, client, {"student": as_prepared})
        nothing = jnp.zeros(len(tiny.data.positions), jnp.int32)
        prepared = Prepared(jax.random.key(9), nothing, nothing == 0, (), {}, None)
        batches = batches._replace(prepared=prepared)
        positions, valid = jnp.arange(BATCH), jnp.ones(BATCH, bool)
        views = [batches.look(jax.random.key(key), positions, valid, tiny.hyper).views["student"] for key in (1, 2)]
        assert bool((views[0] == views[1]).all()) == (not LABELED[client])
