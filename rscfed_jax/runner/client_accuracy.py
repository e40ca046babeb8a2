"""How well the global model serves each client: its accuracy on test samples in the client's own class mixture."""

from typing import NamedTuple

import numpy as np

from rscfed_jax.data.federation import Federation
from rscfed_jax.data.partition import class_counts
from rscfed_jax.data.ragged import Ragged
from rscfed_jax.storage.records import MOST_LISTED, Record

MOST_ALONE = 65_536  # clients whose accuracies are computed one by one


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


class Mixtures(NamedTuple):
    """The class mixtures of clients; of very many clients each mixture once, with the number that have it."""

    class_counts: np.ndarray  # [n, classes] samples of each class, hidden labels included
    clients: np.ndarray | None = None  # [n] how many clients have them; None: one each

    @classmethod
    def of(cls, federation: Federation, clients: int) -> "Mixtures":
        """Those of the clients of a federation, without a server."""
        if clients <= MOST_ALONE:
            return cls(federation.class_counts[:clients])
        found: dict[bytes, int] = {}
        samples, dataset = Ragged.of(federation.samples)[:clients], federation.dataset
        for block in samples.blocks(dataset.classes):
            counts = class_counts(samples[block], dataset.train_labels, dataset.classes)
            rows = counts.view(np.dtype((np.void, counts.itemsize * counts.shape[1]))).ravel()
            for row, number in zip(*np.unique(rows, return_counts=True), strict=True):
                found[row.tobytes()] = found.get(row.tobytes(), 0) + int(number)
        distinct = np.frombuffer(b"".join(found), np.int32).reshape(len(found), -1)
        return cls(distinct, np.array(list(found.values())))


def client_accuracies(confusion: np.ndarray, mixtures: Mixtures) -> Record:
    """The part of a record with the mean over clients, the minimum and, unless there are too many, every client."""
    accuracies = accuracy_by_client(confusion, mixtures.class_counts)
    there = ~np.isnan(accuracies)
    known, weights = accuracies[there], None if mixtures.clients is None else mixtures.clients[there]
    record: Record = {
        "client_accuracy_mean": float(np.average(known, weights=weights)) if known.size else None,
        "client_accuracy_min": float(known.min()) if known.size else None,
    }
    if mixtures.clients is None and len(accuracies) <= MOST_LISTED:
        record["client_accuracy"] = [None if np.isnan(value) else value for value in accuracies.tolist()]
    return record
