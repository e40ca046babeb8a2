"""The samples of some clients of a large population, as the table that training reads."""

from typing import Any

import numpy as np

from rscfed_jax.data.dataset import normalisation
from rscfed_jax.data.federation import Federation
from rscfed_jax.data.ragged import Ragged
from rscfed_jax.data.resize import resize
from rscfed_jax.data.table import HIDDEN, pack_pixels, positions_of

PADDING = 2**31 - 1  # the id in a row that holds no client


class Holders:
    """What every holder of data has, in a few numbers each; images are read when a table asks for them."""

    def __init__(self, federation: Federation, *, resize_to: int):
        self.dataset, self.side = federation.dataset, resize_to
        self.samples, self.visible = Ragged.of(federation.samples), Ragged.of(federation.label_visible)
        self.sizes = self.samples.sizes  # [N]
        labels = federation.labels
        self.labeled, self.unlabeled = labels > 0, labels < self.sizes  # [N]
        self.normalisation = normalisation(self.dataset)
        self.positions = positions_of(int(self.sizes.max()))

    def most_samples(self, rows: int) -> int:
        """The most samples that `rows` clients can hold."""
        return int(np.partition(self.sizes, -rows)[-rows:].sum())

    def table(
        self,
        clients: np.ndarray,
        *,
        rows: int,
        samples: int,
        always: np.ndarray,
        attackers: np.ndarray | None,
    ) -> dict[str, Any]:
        """As `train_table`, of the clients [n] alone, whose ids rise: row i is clients[i].

        There is room for `rows` clients and `samples` samples. The clients `always` are in every table; the rows of
        these are its labeled ones. `attackers` [N] says who attacks.
        """
        held, visible = self.samples.take(clients), self.visible.take(clients).values
        truth = self.dataset.train_labels[held.values].astype(np.int32)
        images = self.dataset.train_images[held.values]
        mean, std = self.normalisation

        def padded(values: np.ndarray, length: int, fill: int = 0) -> np.ndarray:
            return np.pad(values, (0, length - len(values)), constant_values=fill)[None]

        counts = np.zeros((1, rows, self.dataset.classes), np.int32)
        counts[0, : len(clients)] = held.like(truth).where(visible).histogram(self.dataset.classes)
        return {
            "images": pack_pixels(resize(images, self.side), room_for=samples),
            "image_ids": np.arange(samples, dtype=np.int32)[None],
            "labels": padded(np.where(visible, truth, HIDDEN).astype(np.int32), samples),
            "starts": padded(held.starts[:-1].astype(np.int32), rows),
            "sizes": padded(held.sizes.astype(np.int32), rows),
            "labeled": padded(self.labeled[clients], rows),
            "unlabeled": padded(self.unlabeled[clients], rows),
            "labeled_ids": np.searchsorted(clients, always).astype(np.int32)[None],
            "unlabeled_ids": np.zeros((1, 0), np.int32),
            "class_counts": counts,
            "positions": self.positions,
            "mean": mean,
            "std": std,
            "truth": padded(truth, samples),
            "ids": padded(clients.astype(np.int32), rows, PADDING),
            "attackers": padded(np.zeros(len(clients), bool) if attackers is None else attackers[clients], rows),
        }
