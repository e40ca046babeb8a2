"""Federated averaging in pfl-research: one process, each client on all threads, batches in the stored order."""

import functools

import numpy as np
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from torch_training import Network, client_tensors, new_optimizer
from work import BATCH, RATE, setting, turns


class Trained(Network):
    """The network with the two functions that pfl-research asks for."""

    def loss(self, pixels: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of a batch."""
        return F.cross_entropy(self(pixels), labels)

    def metrics(self, pixels: torch.Tensor, labels: torch.Tensor) -> dict:
        """None: the first iteration evaluates in any case, which no other system does."""
        return {}


def main() -> None:
    """Runs rounds on request."""
    clients, samples, _ = setting()
    np.random.seed(0)
    torch.manual_seed(0)
    network = Trained()
    model = PyTorchModel(network, new_optimizer, torch.optim.SGD(network.parameters(), lr=1.0))
    held = [PyTorchTensorDataset(client_tensors(client, samples), user_id=str(client)) for client in range(clients)]
    federation = FederatedDataset(held.__getitem__, get_user_sampler("minimize_reuse", list(range(clients))))
    backend = SimulatedBackend(federation, federation, postprocessors=[WeightByDatapoints()])
    algorithm = FederatedAveraging()
    local = NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=RATE)
    params = functools.partial(
        NNAlgorithmParams, evaluation_frequency=10**9, train_cohort_size=clients, val_cohort_size=None
    )
    done = 0
    for rounds in turns():
        done += rounds  # a second run goes on after the iterations of the first
        model = algorithm.run(params(central_num_iterations=done), backend, model, local)


if __name__ == "__main__":
    main()
