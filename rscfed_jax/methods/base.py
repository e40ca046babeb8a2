"""What a method is made of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flax.linen as nn

from rscfed_jax.aggregation import Consensus, Members, plain_consensus, sub_consensus
from rscfed_jax.config import Hyper
from rscfed_jax.data.table import FederatedData
from rscfed_jax.local.objective import Objective, mean_teacher_loss
from rscfed_jax.types import Array, Model


def no_memory(network: nn.Module) -> None:
    """The server keeps nothing but the model."""


def forget(memory: None, news: None, members: Members) -> None:
    """There is nothing to remember."""


def by_data_amount(models: Model, members: Members, hyper: Hyper) -> Consensus:
    """Averages [K, ...] models by data amount and labeled share alone."""
    return plain_consensus(
        models, members, labeled_share=hyper.labeled_share, labeled_multiplier=hyper.labeled_multiplier
    )


@dataclass(frozen=True)
class Method:
    """Static and hashable: equal methods share one compiled program."""

    sample: Callable[[Array, FederatedData], Array]  # key -> [M, K] client ids
    aggregate: Callable[[Model, Members, Hyper], Consensus]  # the K models of one subset -> what it agrees on
    warmup: Callable[[Model, Members, Hyper], Consensus] = by_data_amount  # the same for the rounds before the first
    objective: Objective = mean_teacher_loss
    teacher: bool = True  # unlabeled clients learn from a mean teacher
    two_views: bool = False  # the objective wants two augmentations even without a teacher
    memory: Callable[[nn.Module], Any] = no_memory  # network -> what the server knows before the first round
    remember: Callable[[Any, Any, Members], Any] = forget  # memory, news [M, K, ...] -> memory


@dataclass(frozen=True)
class DistanceReweighted:
    """Averages a subset with weights that fall with the distance from its mean."""

    distance: Callable[[Model, Model], Array]

    def __call__(self, models: Model, members: Members, hyper: Hyper) -> Consensus:
        """The sub-consensus of [K, ...] models."""
        return sub_consensus(
            models,
            members,
            beta=hyper.beta,
            beta_labeled=hyper.beta_labeled,
            labeled_share=hyper.labeled_share,
            labeled_multiplier=hyper.labeled_multiplier,
            distance=self.distance,
        )
