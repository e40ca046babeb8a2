"""From a client's samples to batches: which samples, in which order and views, and what `prepare` decides."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rscfed_jax.config import Hyper
from rscfed_jax.core.algorithm import Algorithm
from rscfed_jax.core.augment import MovingView, as_prepared, centre, cropped, normalise, weak
from rscfed_jax.core.method import Labeled, Separate
from rscfed_jax.core.objective import Batch, PseudoLabels, Step
from rscfed_jax.core.types import Array, FederatedData

# What a key is folded with for draws of their own, far from the numbers of epochs, steps and pixels.
MIDDLE = np.array([[0.5], [0.5], [1.0]], np.float32)  # luck that crops the middle and never flips
OBJECTIVE, PARTNERS, FIRST_VIEW = 2**31 - 1, 2**31 - 2, 2**31 - 100


class Holding(NamedTuple):
    """What a client holds. A row out of range holds nothing."""

    start: Array  # int32: its first sample
    size: Array  # int32
    labeled: Array  # bool: it holds a label
    class_counts: Array  # [classes] visible labels


class Prepared(NamedTuple):
    """What `prepare` said of all samples of a client."""

    key: Array  # of the crops that it saw
    labels: Array  # [P] int32 by position: the visible label, or the one that was said
    keep: Array  # [P] bool
    statistics: Any
    news: dict[str, Array]
    judged: Array  # [classes, 3] as in `Trained`


def holding_of(row: Array, data: FederatedData) -> Holding:
    """What the client in this row holds."""

    def own(values: Array, nothing: Any) -> Array:
        return values.at[row].get(mode="fill", fill_value=nothing)

    return Holding(own(data.starts, 0), own(data.sizes, 0), own(data.labeled, False), own(data.class_counts, 0))


class Batches(NamedTuple):
    """The batches of a client."""

    algorithm: Algorithm
    holding: Holding
    data: FederatedData
    prepared: Prepared | None = None

    @property
    def _kept(self) -> Array:
        """[P] whether there is a sample at each position that the client trains on."""
        there = self.data.positions < self.holding.size
        if isinstance(self.algorithm.method.batches, Labeled):
            return there & self._labeled
        return there if self.prepared is None else there & self.prepared.keep

    @property
    def _labeled(self) -> Array:
        """[P] whether the sample at each position has a visible label."""
        return self.data.labels.at[self.holding.start + self.data.positions].get(mode="clip") >= 0

    def _count(self) -> Array:
        """How many samples the client trains on."""
        all_of_them = self.prepared is None and not isinstance(self.algorithm.method.batches, Labeled)
        return self.holding.size if all_of_them else jnp.sum(self._kept, dtype=jnp.int32)

    def _count_by_kind(self) -> tuple[Array, Array]:
        """How many of them have a visible label, and how many have none."""
        labeled = jnp.sum(self._kept & self._labeled, dtype=jnp.int32)
        return labeled, self._count() - labeled

    def steps(self) -> Array:
        """How many batches an epoch has."""
        kind = self.algorithm.method.batches
        if not isinstance(kind, Separate):
            return in_batches(self._count(), self.algorithm.batch_size)
        return kind.steps(*self._count_by_kind())

    def order(self, key: Array) -> Array:
        """[P] the positions that the client trains on in random order, then the rest; labeled first if separate."""
        separate = isinstance(self.algorithm.method.batches, Separate)
        return random_order(key, self._kept, later=~self._labeled if separate else None)

    def take(self, key: Array, order: Array, number: Array, hyper: Hyper) -> Batch:
        """The batch of this number in an epoch with this order, with partners if the method asks for them."""
        kind, size = self.algorithm.method.batches, self.algorithm.batch_size
        if isinstance(kind, Separate):
            labeled, others = self._count_by_kind()
            first, second = jnp.arange(kind.labeled), number * kind.unlabeled + jnp.arange(kind.unlabeled)
            again = (number * kind.labeled + first) % jnp.maximum(labeled, 1)
            places = jnp.concatenate([again, labeled + second])
            valid = jnp.concatenate([first < labeled, second < others])
        else:
            places = number * size + jnp.arange(size)
            valid = places < self._count()
        positions = jnp.where(valid, order.at[places].get(mode="clip"), 0)
        batch = self.look(key, positions, valid, hyper)
        if not self.algorithm.method.partners:
            return batch
        draw_key, view_key = jax.random.split(jax.random.fold_in(key, PARTNERS))
        anyone = jax.random.randint(draw_key, positions.shape, 0, jnp.maximum(self.holding.size, 1))
        return batch._replace(partner=self.look(view_key, anyone, valid, hyper))

    def judged(self, batch: Batch, pseudo: PseudoLabels) -> Array:
        """[classes, 3] samples of a batch that have no visible label, by their true class: seen, kept, labeled right.

        The only place that looks at the truth. Nothing of it goes back into training.
        """
        assert batch.positions is not None
        truth = self.data.truth[self.holding.start + batch.positions]
        seen = batch.valid & (batch.labels < 0)
        kept = seen & pseudo.keep
        counts = jnp.stack([seen, kept, kept & (pseudo.labels == truth)], axis=1).astype(self.data.mean.dtype)
        return jax.nn.one_hot(truth, self.holding.class_counts.shape[0], dtype=counts.dtype).T @ counts

    def look(self, key: Array, positions: Array, valid: Array, hyper: Hyper, *, own_luck: Array | None = None) -> Batch:
        """The samples at `positions` [B] of the client, in the method's views; `own_luck` [3, B] fixes their crops."""
        data, views, samples = self.data, self.algorithm.method.views, self.holding.start + positions
        luck = jax.random.uniform(key, (len(views), 3, len(positions)), jnp.float32)
        images: Array = data.images
        rows: Array | None = data.image_ids[samples]
        if len(views) > 1:  # fetched from far away once; for one view, XLA would fetch each pixel by itself
            images, rows = images.at[rows].get(mode="promise_in_bounds"), None
        shown = {}
        for number, (name, view) in enumerate(views):
            fixed = own_luck if view is not centre else jnp.broadcast_to(MIDDLE, luck[number].shape)
            if view is as_prepared and self.prepared is not None:
                same = luck_of_samples(self.prepared.key, positions)
                fixed = jnp.where(data.labels[samples] < 0, same, luck[number])
            of_view = luck[number] if fixed is None else fixed
            crop = partial(cropped, of_view, images, rows, size=self.algorithm.image_size, flip_rate=hyper.flip_rate)
            own_key = jax.random.fold_in(key, FIRST_VIEW + number)
            if isinstance(view, MovingView):
                maps, paint = view.plan(own_key, batch=len(positions), side=self.algorithm.image_size)
                pixels = paint(crop(maps=maps).astype(data.mean.dtype))
            else:
                pixels = crop()
                if view not in (weak, as_prepared, centre):
                    pixels = view(own_key, pixels.astype(data.mean.dtype))
            shown[name] = normalise(pixels, data.mean, data.std, self.algorithm.network.dtype)
        pseudo_labels = None if self.prepared is None else self.prepared.labels[positions]
        return Batch(shown, data.labels[samples], valid, positions, pseudo_labels)


def in_batches(samples: Array, size: int) -> Array:
    """How many batches of `size` hold this many samples, including a short last one."""
    return (samples + size - 1) // size


def random_order(key: Array, first: Array, *, later: Array | None = None) -> Array:
    """[P] the positions that `first` [P] names, in random order, then the rest.

    Of those that it names, the ones that `later` [P] names as well come after the others.
    """
    draws = jax.random.uniform(key, first.shape, jnp.float32)
    if later is not None:
        draws += later
    return jnp.argsort(jnp.where(first, draws, 2.0))


def luck_of_samples(key: Array, positions: Array) -> Array:
    """[3, B] draws for the crops of samples: a sample's own, wherever it stands in a batch."""
    return jax.vmap(lambda place: jax.random.uniform(jax.random.fold_in(key, place), (3,), jnp.float32))(positions).T


def prepare(batches: Batches, key: Array, see: Callable[..., Step], hyper: Hyper) -> Prepared:
    """One pass over a client's samples before its first step, in the order in which it holds them.

    `see(key=..., batch=...)` makes the step that the method's `prepare` sees.
    """
    algorithm, holding, data, _ = batches
    ask, size = algorithm.method.prepare, algorithm.batch_size
    assert ask is not None

    def one_batch(number: Array) -> tuple[Array, Array, tuple]:
        places, own_key = number * size + jnp.arange(size), jax.random.fold_in(key, number)
        valid = places < holding.size
        positions = jnp.where(valid, places, 0)
        batch = batches.look(own_key, positions, valid, hyper, own_luck=luck_of_samples(key, positions))
        step = see(key=jax.random.fold_in(own_key, OBJECTIVE), batch=batch)
        verdict = ask(algorithm.network, step, hyper)
        visible = batch.labels >= 0
        labels = jnp.where(visible, batch.labels, verdict.labels).astype(jnp.int32)
        judged = batches.judged(batch, PseudoLabels(verdict.labels, verdict.keep))
        return labels, verdict.keep | visible, (verdict.statistics, verdict.news, judged)

    def body(number: Array, carry: tuple[Array, Array, Any]) -> tuple[Array, Array, Any]:
        labels, keep, sums = carry
        new_labels, new_keep, more = one_batch(number)
        places = number * size + jnp.arange(size)
        return (
            labels.at[places].set(new_labels, mode="drop"),
            keep.at[places].set(new_keep, mode="drop"),
            jax.tree.map(jnp.add, sums, more),
        )

    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(one_batch, jnp.int32(0))[2])
    begin = (jnp.zeros_like(data.positions), jnp.zeros(data.positions.shape, bool), nothing)
    labels, keep, sums = jax.lax.fori_loop(0, in_batches(holding.size, size), body, begin)
    return Prepared(key, labels, keep, *sums)
