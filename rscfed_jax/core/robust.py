"""Robust aggregators: what a subset agrees on although some of its members send corrupted models.

    median, trimmed_mean    Yin, Chen, Ramchandran, Bartlett. ICML 2018. https://arxiv.org/abs/1803.01498
    krum, multi_krum        Blanchard, El Mhamdi, Guerraoui, Stainer. NeurIPS 2017. https://arxiv.org/abs/1703.02757
    geometric_median        RFA: Pillutla, Kakade, Harchaoui. IEEE TSP 2022. https://arxiv.org/abs/1912.13445

All are functions of the [K, ...] models of a subset, in the models' own precision. Members that are not healthy hold
the global model and never count. Where drop-outs leave fewer models than `assumed_attackers` needs, fewer attackers are
withstood. Distances are those of the parameters; batch statistics follow the same rule or weights.
"""

import jax
import jax.numpy as jnp

from rscfed_jax.config import Hyper
from rscfed_jax.core.aggregation import (
    Consensus,
    Members,
    data_shares,
    l2_distance,
    squared_distance,
    weighted_mean,
)
from rscfed_jax.core.types import Array, Model

SMOOTHING = 1e-6  # the distance below which a model gains no more weight in the geometric median
ITERATIONS = 5  # of Weiszfeld's algorithm; RFA's authors need three


def median(models: Model, members: Members, hyper: Hyper) -> Consensus:
    """The median of each coordinate of [K, ...] models, the mean of the middle two for an even number.

    Data amounts do not count. The weights [K] are equal over healthy members: none has a weight of its own.
    """
    del hyper
    return _middle(models, members, (jnp.sum(members.healthy) - 1) // 2)


def trimmed_mean(models: Model, members: Members, hyper: Hyper) -> Consensus:
    """The mean of each coordinate of [K, ...] models without the `assumed_attackers` lowest and highest.

    At least one or two values stay. Data amounts do not count, and the weights [K] are equal as those of `median`.
    """
    most = (jnp.sum(members.healthy) - 1) // 2
    return _middle(models, members, jnp.minimum(hyper.assumed_attackers, most))


def krum(models: Model, members: Members, hyper: Hyper) -> Consensus:
    """The one of [K, ...] models whose n - f - 2 nearest neighbours are nearest; the first of equals.

    The weights [K] are one for the chosen member and zero for the others.
    """
    return _nearest(models, members, hyper, number=1)


def multi_krum(models: Model, members: Members, hyper: Hyper) -> Consensus:
    """The plain mean of the n - f models of [K, ...] that Krum likes best; the weights [K] are equal over them."""
    return _nearest(models, members, hyper, number=jnp.sum(members.healthy) - hyper.assumed_attackers)


def geometric_median(models: Model, members: Members, hyper: Hyper) -> Consensus:
    """The point with the least sum of distances from [K, ...] models, each times its data share.

    Smoothed Weiszfeld iterations; the weights [K] are those of the last. They start from the median of each coordinate:
    from the mean, a few iterations would not come back from an outlier that is far enough away.
    """
    shares = data_shares(members, hyper)

    def weights_around(center: Model) -> Array:
        weights = shares / jnp.maximum(l2_distance(models, center), SMOOTHING)
        total = jnp.sum(weights)  # zero where none is healthy, or all distances overflow
        return weights / jnp.where(total > 0, total, 1)

    def step(_: int, weights: Array) -> Array:
        return weights_around(weighted_mean(models, weights))

    first = weights_around(median(models, members, hyper).model)
    weights = jax.lax.fori_loop(1, ITERATIONS, step, first)
    model = weighted_mean(models, weights)
    return Consensus(model, weights, l2_distance(models, model))


def _middle(models: Model, members: Members, cut: Array) -> Consensus:
    """The mean of each coordinate of [K, ...] models without the `cut` lowest and highest."""
    healthy, count = members.healthy, jnp.sum(members.healthy)
    cut = jnp.maximum(cut, 0)

    def mean(leaf: Array) -> Array:
        rank = _ranks(leaf, healthy)
        kept = _column(healthy, leaf) & (rank >= cut) & (rank < count - cut)
        left = jnp.maximum(count - 2 * cut, 1)
        return jnp.sum(jnp.where(kept, leaf, 0), axis=0) / left.astype(leaf.dtype)

    model = jax.tree.map(mean, models)
    return Consensus(model, healthy / jnp.maximum(count, 1), l2_distance(models, model))


def _ranks(leaf: Array, healthy: Array) -> Array:
    """[K, ...] how many healthy members have a lower value in a coordinate; of equals, the first is lower.

    On CPU some ten times as fast as a sort over few members, and a member at a time takes little memory.
    """
    places = jnp.arange(len(leaf))

    def lower(member: tuple[Array, Array]) -> Array:
        place, own = member
        below = (leaf < own) | ((leaf == own) & _column(places < place, leaf))
        return jnp.sum(below & _column(healthy, leaf), axis=0, dtype=jnp.int32)

    return jax.lax.map(lower, (places, leaf))


def _nearest(models: Model, members: Members, hyper: Hyper, *, number: Array | int) -> Consensus:
    """The plain mean of the `number` models of [K, ...] with the lowest scores of Krum, of at least one."""
    count = jnp.sum(members.healthy)
    scores = _krum_scores(models, members.healthy, hyper)
    place = jnp.argsort(jnp.argsort(scores))  # both are stable; members that are not healthy come last
    chosen = members.healthy & (place < jnp.clip(number, 1, count))
    weights = chosen / jnp.maximum(jnp.sum(chosen), 1)
    model = weighted_mean(models, weights)
    return Consensus(model, weights, l2_distance(models, model))


def _krum_scores(models: Model, healthy: Array, hyper: Hyper) -> Array:
    """[K] sums of the squared distances from the n - f - 2 nearest healthy others, of at least one.

    Differences are squared as they are: the digits of near models would be lost in a matrix of their products. A sum
    that overflows is the largest number, so that a healthy member always comes before one that is not.
    """
    members, count = len(healthy), jnp.sum(healthy)
    squares = jax.lax.map(lambda model: squared_distance(models, model), models)  # [K, K]
    others = healthy & ~jnp.eye(members, dtype=bool)
    ordered = jnp.sort(jnp.where(others, squares, jnp.inf), axis=1)
    neighbours = jnp.minimum(jnp.maximum(count - hyper.assumed_attackers - 2, 1), count - 1)
    scores = jnp.sum(jnp.where(jnp.arange(members) < neighbours, ordered, 0), axis=1)
    return jnp.where(healthy, jnp.minimum(scores, jnp.finfo(scores.dtype).max), jnp.inf)


def _column(values: Array, leaf: Array) -> Array:
    """Values [K] in a shape that broadcasts with a leaf [K, ...]."""
    return values.reshape(-1, *[1] * (leaf.ndim - 1))
