"""The result of a run."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rscfed_jax.config import Config
from rscfed_jax.core.types import Model
from rscfed_jax.runner.build import Simulation, cell_of
from rscfed_jax.runner.classifier import Classifier


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
        """The experiment with its state after the last round, to continue from; not of a population on the host."""
        if self.cells.stage is not None:
            raise ValueError(
                f"--population {self.config.population}: the devices held only the clients of the last rounds; "
                "train with population='device' to continue from here"
            )
        return cell_of(self.cells, self.number)

    @property
    def classifier(self) -> Classifier:
        """The trained global model, ready to classify images."""
        data = self.cells.data
        return Classifier(self.cells.algorithm.network, self.model, self.config.image_size, data.mean, data.std)

    def predict(self, images: np.ndarray) -> np.ndarray:
        """[B, classes] probabilities for [B, H, W, 1 or 3] uint8 images of any size."""
        return self.classifier.predict(images)
