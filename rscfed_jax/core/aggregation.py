"""Distance-reweighted model aggregation (DMA): equations 5 to 7 of the paper.

Pure functions of stacked models: pytrees whose leaves have a leading axis of K clients. Nothing here knows of data.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rscfed_jax.config import Hyper
from rscfed_jax.core.types import Array, Model

# A matmul defaults to bfloat16 on TPU and may use TF32 on GPU; beta 10,000 would amplify either.
HIGHEST = jax.lax.Precision.HIGHEST


class Members(NamedTuple):
    """What the server knows of the K clients of a subset."""

    sizes: Array  # [K] data amounts
    labeled: Array  # [K] bool
    healthy: Array  # [K] bool: the client answered with a finite model
    news: dict[str, Array] = {}  # noqa: RUF012 - [K, ...] what the clients reported, of the shapes that the method declares


class Consensus(NamedTuple):
    """What a subset agreed on."""

    model: Model
    weights: Array  # [K], they sum to one; all zero where no client is healthy
    distances: Array  # [K]


def weighted_mean(models: Model, weights: Array) -> Model:
    """Averages [K, ...] models with [K] weights that sum to one."""
    return jax.tree.map(lambda leaf: jnp.tensordot(weights.astype(leaf.dtype), leaf, axes=1, precision=HIGHEST), models)


def _squares(models: Model, center: Model) -> list[Array]:
    """A [K] sum of squared differences for each tensor."""
    parts = jax.tree.map(lambda leaf, c: jnp.sum((leaf - c) ** 2, axis=range(1, leaf.ndim)), models, center)
    return jax.tree.leaves(parts)


def squared_distance(models: Model, center: Model) -> Array:
    """[K] squared distances from `center`: one L2 norm over all parameters."""
    return reduce(add, _squares(models["params"], center["params"]))


def l2_distance(models: Model, center: Model) -> Array:
    """[K] distances from `center`: one L2 norm over all parameters, as the paper has it."""
    return jnp.sqrt(squared_distance(models, center))


def sum_distance(models: Model, center: Model) -> Array:
    """[K] distances from `center`: the sum of each tensor's L2 norm, as the published code has it.

    Batch statistics count as well. The published code counts even the batch counters, which flax does not have.
    """
    return reduce(add, [jnp.sqrt(square) for square in _squares(models, center)])


DISTANCES: dict[str, Callable[[Model, Model], Array]] = {"l2": l2_distance, "sum": sum_distance}


def data_shares(members: Members, hyper: Hyper) -> Array:
    """[K] shares by data amount that sum to one; broken clients have none.

    The amounts of labeled clients count `labeled_multiplier` times. Where `labeled_share` is not negative and both
    kinds are there, the labeled clients share that part of the weight and the others the rest.
    """
    amounts = members.sizes * members.healthy * jnp.where(members.labeled, hyper.labeled_multiplier, 1.0)
    labeled = amounts * members.labeled
    total, total_labeled = jnp.sum(amounts), jnp.sum(labeled)
    total_other = total - total_labeled
    split = (hyper.labeled_share >= 0) & (total_labeled > 0) & (total_other > 0)
    plain = _ratio(amounts, total)
    grouped = hyper.labeled_share * _ratio(labeled, total_labeled) + (1 - hyper.labeled_share) * _ratio(
        amounts - labeled, total_other
    )
    return jnp.where(split, grouped, plain)


def _ratio(parts: Array, total: Array) -> Array:
    return parts / jnp.where(total > 0, total, 1)


def dma_weights(distances: Array, sizes: Array, shares: Array, *, beta: Array) -> Array:
    """[K] weights that fall with the distance from the subset's mean (equation 6).

    A softmax over log-weights: they sum to one even where every exponential underflows. A client whose distance
    overflows has no weight; where all do, no client has any.
    """
    counted = (shares > 0) & jnp.isfinite(distances)
    log_weights = jnp.where(counted, jnp.log(jnp.where(shares > 0, shares, 1)), -jnp.inf)
    log_weights -= beta * jnp.where(counted, distances, 0) / jnp.maximum(sizes, 1)
    return jnp.where(jnp.any(counted), jax.nn.softmax(log_weights), 0.0)


def by_data_amount(models: Model, members: Members, hyper: Hyper) -> Consensus:
    """Averages [K, ...] models by data amount and labeled share alone (equation 5)."""
    weights = data_shares(members, hyper)
    center = weighted_mean(models, weights)
    return Consensus(center, weights, l2_distance(models, center))


def as_equals(models: Model, members: Members, hyper: Hyper) -> Consensus:
    """Averages [K, ...] models that count equally within the labeled and within the other clients."""
    return by_data_amount(models, members._replace(sizes=jnp.ones_like(members.sizes)), hyper)


def with_scores(members: Members, scores: Array, scored: Array) -> Members:
    """Members of which those that `scored` [K] names share their data amounts anew, in proportion to `scores` [K]."""
    healthy = members.healthy & scored
    scores, amounts = jnp.where(healthy, scores, 0), jnp.where(healthy, members.sizes, 0)
    shared = _ratio(scores, jnp.sum(scores)) * jnp.sum(amounts)
    return members._replace(sizes=jnp.where(scored, shared, members.sizes))


@dataclass(frozen=True)
class SubConsensus:
    """The model that a subset agrees on, with weights that fall with the distance from its mean: equations 5 and 6."""

    distance: Callable[[Model, Model], Array] = l2_distance

    def __call__(self, models: Model, members: Members, hyper: Hyper) -> Consensus:
        """Averages [K, ...] models.

        `beta_labeled` serves a subset in which a labeled client answered. The published code applies the labeled
        multiplier twice: to the data amounts before averaging, and to the weights after the distance factor.
        """
        shares = data_shares(members, hyper)
        center = weighted_mean(models, shares)
        distances = self.distance(models, center)
        boosted = shares * jnp.where(members.labeled, hyper.labeled_multiplier, 1.0)
        beta = jnp.where(jnp.any(members.labeled & members.healthy), hyper.beta_labeled, hyper.beta)
        weights = dma_weights(distances, members.sizes, boosted, beta=beta)
        return Consensus(weighted_mean(models, weights), weights, distances)


sub_consensus = SubConsensus()


def global_mean(consensus: Consensus, previous: Model) -> Model:
    """Equation 7: the plain mean of M sub-consensus models; a subset without a healthy client keeps `previous`."""
    agreed = jnp.any(consensus.weights > 0, axis=1)

    def mean(leaf: Array, old: Array) -> Array:
        return jnp.mean(jnp.where(agreed.reshape(-1, *[1] * old.ndim), leaf, old), axis=0)

    return jax.tree.map(mean, consensus.model, previous)
