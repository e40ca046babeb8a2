"""The result of a run."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rscfed_jax.config import Config
from rscfed_jax.core.augment import normalise
from rscfed_jax.core.metrics import batch_of
from rscfed_jax.core.pixels import unpack_pixels
from rscfed_jax.core.types import Model
from rscfed_jax.data.resize import resize
from rscfed_jax.data.table import pack_pixels
from rscfed_jax.runner.build import Simulation, cell_of


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    config: Config
    metrics: list[dict[str, Any]]  # one record per evaluated round, as in metrics.jsonl
    summary: dict[str, Any]  # as in summary.json
    model: Model  # the trained global model: flax variables
    best_model: Model  # the one with the best test accuracy of the evaluated rounds
    confusion: np.ndarray  # [classes, classes] of the last round on the test set; rows are the true classes
    cells: Simulation  # of all experiments that ran together
    number: int  # of this one among them

    @cached_property
    def simulation(self) -> Simulation:
        """The experiment with its state after the last round, to continue from."""
        return cell_of(self.cells, self.number)

    def predict(self, images: np.ndarray) -> np.ndarray:
        """[B, classes] probabilities for [B, H, W, 1 or 3] uint8 images of any size."""
        if images.dtype != np.uint8 or images.ndim != 4:
            raise ValueError(f"images must be uint8 of shape B,H,W,C, not {images.dtype} of shape {images.shape}")
        network, data = self.cells.algorithm.network, self.cells.data
        side, parts = self.config.image_size, []
        batch = batch_of(side, side)
        for start in range(0, len(images), batch):
            words = jnp.asarray(pack_pixels(resize(images[start : start + batch], side)))
            pixels = normalise(unpack_pixels(words.transpose(1, 2, 0)), data.mean, data.std, network.dtype)
            logits = network.apply(self.model, pixels, train=False)
            parts.append(np.asarray(jax.nn.softmax(logits.astype(jnp.float32))))
        return np.concatenate(parts) if parts else np.zeros((0, network.classes), np.float32)
