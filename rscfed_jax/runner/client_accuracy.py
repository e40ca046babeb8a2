"""How well the global model serves each client: its accuracy on test samples in the client's own class mixture."""

import numpy as np

from rscfed_jax.storage.records import MOST_LISTED, Record


def accuracy_by_client(confusion: np.ndarray, class_counts: np.ndarray) -> np.ndarray:
    """[N] the recall of each class, weighed by its share in the client's samples.

    `confusion` is [classes, classes], rows the true classes; `class_counts` is [N, classes], hidden labels included.
    Classes without test samples are left out of the mixture. NaN for a client that holds no others.
    """
    tested = confusion.sum(axis=1)
    recall = np.diag(confusion) / np.maximum(tested, 1)
    held = class_counts * (tested > 0)
    total = held.sum(axis=1)
    # Not a matrix product: its rounding may depend on the number of threads.
    return np.where(total > 0, (held * recall).sum(axis=1) / np.maximum(total, 1), np.nan)


def client_accuracies(confusion: np.ndarray, class_counts: np.ndarray) -> Record:
    """The part of a record with the mean over clients, the minimum and, unless there are too many, every client."""
    accuracies = accuracy_by_client(confusion, class_counts)
    known = accuracies[~np.isnan(accuracies)]
    record: Record = {
        "client_accuracy_mean": float(known.mean()) if known.size else None,
        "client_accuracy_min": float(known.min()) if known.size else None,
    }
    if len(accuracies) <= MOST_LISTED:
        record["client_accuracy"] = [None if np.isnan(value) else value for value in accuracies.tolist()]
    return record
