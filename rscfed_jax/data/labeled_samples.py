"""Labeled samples that are drawn before the clients get theirs: for the server, or as a pool to divide."""

from collections.abc import Sequence

import numpy as np

from rscfed_jax.config import SettingError
from rscfed_jax.data import partition


def draw_for_server(labels: np.ndarray, number: int, free: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """`number` random samples of each class, as indices into `labels`, out of those that `free` names.

    A larger number adds samples and keeps the others: each class is shuffled as a whole.
    """
    drawn = []
    for label in np.unique(labels):
        of_class = free[labels[free] == label]
        if len(of_class) < number:
            reason = f"the training set has only {len(of_class)} samples of class {label}; must be at most that"
            raise SettingError("server_labels", number, reason)
        drawn.append(rng.permutation(of_class)[:number])
    return np.concatenate(drawn)


def draw_pool(labels: np.ndarray, fraction: float, free: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """This fraction of each class, at least one sample, as indices into `labels`, out of those that `free` names."""
    classes = [free[labels[free] == label] for label in np.unique(labels[free])]
    return np.concatenate([rng.permutation(own)[: max(1, round(len(own) * fraction))] for own in classes])


def share_pool(
    labels: np.ndarray, pool: np.ndarray, clients: int, *, gamma: float | str, rng: np.random.Generator
) -> list[np.ndarray]:
    """A partition of the pool, at least one labeled sample for each client.

    The rule is that of the unlabeled samples. SAGE draws within pairs of clients and then cuts all to equal sizes
    (Dataset/sample_dirichlet.py of its code); that is not done here.
    """
    if len(pool) < clients:
        reason = f"{len(pool)} labeled samples are not enough for {clients} clients; give a larger --labeled-fraction"
        raise SettingError("labeled_gamma", gamma, reason)
    parts: Sequence[np.ndarray]
    if gamma == "iid":
        parts = partition.iid_partition(labels[pool], clients, min_size=1, rng=rng)
    else:
        found, _ = partition.draw_until(labels[pool], clients, gamma=float(gamma), min_size=1, rng=rng)
        if found is None:
            reason = (
                f"some client got none of the {len(pool)} labeled samples in each of {partition.MAX_DRAWS} draws; "
                "give a larger one, fewer --clients or a larger --labeled-fraction"
            )
            raise SettingError("labeled_gamma", gamma, reason)
        parts = found
    return [pool[part] for part in parts]
