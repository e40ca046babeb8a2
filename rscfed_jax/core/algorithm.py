"""The static description of a round."""

from dataclasses import dataclass

import flax.linen as nn

from rscfed_jax.core.client_axis import ONE_AT_A_TIME, ClientAxis
from rscfed_jax.core.faults import NO_FAULTS, Faults
from rscfed_jax.core.method import Method
from rscfed_jax.core.optimizer import ServerOptimizer
from rscfed_jax.core.repeat import Repeat, retrain


@dataclass(frozen=True)
class Algorithm:
    """Equal algorithms share one compiled program."""

    method: Method
    network: nn.Module
    image_size: int
    batch_size: int
    epochs: int = 1  # where the method does not say
    repeat: Repeat = retrain
    axis: ClientAxis = ONE_AT_A_TIME
    faults: Faults = NO_FAULTS
    keeps_clients: bool = True  # clients keep teacher and momentum from one selection to the next
    proximal: bool = False  # clients are drawn toward the model that was sent: FedProx
    balanced: bool = False  # labeled losses use a balanced softmax
    server: ServerOptimizer | None = None  # None: the mean of the models is the next global model
    precision: str = "default"  # of the products in training: the device's own, or `highest`
    server_id: int | None = None  # of the server among the holders of data, where it is one: no model travels to it

    @property
    def with_teacher(self) -> bool:
        """Whether clients have a mean teacher of their own."""
        return self.method.teacher == "ema"
