"""From a client's samples to batches: the order of an epoch, what each batch holds, who holds nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rscfed_jax.core.augment import weak
from rscfed_jax.core.batches import Batches, holding_of, luck_of_samples, random_order
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
