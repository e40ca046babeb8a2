"""FedRGD: random groups, each averaged with the labeled model in it, and FixMatch's loss.

Zhang et al. Improving semi-supervised federated learning by reducing the gradient diversity of models. IEEE Big
Data 2021. https://arxiv.org/abs/2008.11364

Numbers are those of the paper: two groups, threshold 0.95 on the client's own predictions, all models of a group count
equally. Choices:
- Every client starts a round from the mean of the groups; in the paper, a group's clients start from their group's.
- A labeled client trains once in a round, and its model is in every group (`--repeat share`).
- Groups have the same size: if clients cannot be divided evenly, a few sit out, different ones each round.
- Networks are those of the other methods; the paper has group normalisation in place of batch normalisation.
- A round is one epoch with the optimiser and learning rates of the other methods; in the paper it is 16 steps at 0.146,
  on a cosine schedule.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from rscfed_jax.config import Config, SettingError
from rscfed_jax.core.aggregation import as_equals
from rscfed_jax.core.augment import weak
from rscfed_jax.core.method import Method
from rscfed_jax.core.randaugment import STRONG_VIEWS
from rscfed_jax.core.types import Array, FederatedData
from rscfed_jax.methods.fixmatch import FixMatchLoss

SAMPLES = "all"
STRONG_VIEW = True
DEFAULTS = {"lambda_u": 1.0, "labeled_share": "off", "labeled_multiplier": 1.0, "repeat": "share"}
NUMBERS = {"threshold": (0.95, "0..1", "confidence from which a pseudo-label counts")}
CHOICES = {"groups": (2, "whole 1..", "disjoint groups that the clients without labels are dealt to in a round")}
REFUSES = {"labeled_fraction": "needs clients that hold no labels, to be dealt into groups"}


def method(config: Config) -> Method:
    """Disjoint random groups with the labeled clients in each, averaged as equals, with FixMatch's loss."""
    return Method(
        sample=DisjointGroups(config.own["groups"]),
        aggregate=as_equals,
        warmup=as_equals,
        views={"weak": weak, "strong": STRONG_VIEWS[config.strong]},
        teacher="frozen",
        objective=FixMatchLoss(own_labels=True),
        pseudo_labels=True,
    )


@dataclass(frozen=True)
class DisjointGroups:
    """The clients without labels, dealt at random into groups of one size; the labeled ones are in every group."""

    groups: int

    def __call__(self, key: Array, data: FederatedData) -> Array:
        """[groups, K] client ids."""
        others = data.unlabeled_ids
        size = len(others) // self.groups
        if len(others) == 0:
            raise SettingError("method", "fedrgd", "needs clients that hold no labels, to be dealt into groups")
        if size == 0:
            reason = f"must be from 1 to {len(others)}, the clients that hold no labels"
            raise SettingError("fedrgd_groups", self.groups, reason)
        luck = jax.random.uniform(key, others.shape, jnp.float32)
        dealt = others[jnp.argsort(luck)][: self.groups * size].reshape(self.groups, size)
        with_labels = jnp.broadcast_to(data.labeled_ids, (self.groups, len(data.labeled_ids)))
        return jnp.concatenate([with_labels, dealt], axis=1)

    def slots(self, labeled: np.ndarray) -> np.ndarray:
        """[N] a labeled client trains once for each group, the others once, or less often if some sit out."""
        others = int((~labeled).sum())
        return np.where(labeled, self.groups, others // self.groups * self.groups / max(others, 1))
