"""Clients that hold samples of K classes only, the "pathological" partition.

McMahan et al. AISTATS 2017, and SemiFL's "non-iid-l". Their shards are dealt at random, so that a client may draw a
class twice and then holds fewer classes (SemiFL's code drops the second shard); here every client holds exactly K.
"""

import numpy as np

from rscfed_jax.config import SettingError


def deal_classes(classes: int, clients: int, number: int, rng: np.random.Generator) -> np.ndarray:
    """[N, classes] booleans: `number` classes for each client, each class at equally many clients, give or take one.

    Each client in turn takes classes that were taken least often, in random order.
    """
    held = np.zeros((clients, classes), dtype=bool)
    for client in rng.permutation(clients):
        order = np.lexsort((rng.random(classes), held.sum(axis=0)))
        held[client, order[:number]] = True
    return held


def shard_partition(
    labels: np.ndarray, clients: int, *, classes_per_client: int, min_size: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Cuts each class into a shard of equal size for each client that holds it."""
    present = np.unique(labels)

    def refuse(reason: str) -> SettingError:
        return SettingError("classes_per_client", classes_per_client, reason)

    if classes_per_client > len(present):
        raise refuse(f"must be from 1 to the {len(present)} classes of the training set")
    if clients * classes_per_client < len(present):
        least = -(-len(present) // clients)
        raise refuse(f"--clients {clients} would leave classes without a client; must be at least {least}")
    held = deal_classes(len(present), clients, classes_per_client, rng)
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for label, holders in zip(present, held.T, strict=True):
        of_class = rng.permutation(np.flatnonzero(labels == label))
        if len(of_class) < holders.sum():
            raise refuse(f"class {label} has {len(of_class)} samples for {holders.sum()} clients; must be smaller")
        for client, shard in zip(np.flatnonzero(holders), np.array_split(of_class, holders.sum()), strict=True):
            parts[client].append(shard)
    samples = [rng.permutation(np.concatenate(shards)) for shards in parts]
    if (smallest := min(map(len, samples))) < min_size:
        reason = (
            f"a client with --classes-per-client {classes_per_client} gets {smallest} samples; must be at most that"
        )
        raise SettingError("min_client_size", min_size, reason)
    return samples
