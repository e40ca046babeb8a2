"""Local training in PyTorch, for the lean loop, Flower and pfl-research."""

import functools

import torch
import torch.nn.functional as F
from torch_round import SimpleCNN
from work import BATCH, DECAY, MEAN, MOMENTUM, RATE, SCALE, client_samples


class Network(SimpleCNN):
    """The paper's simple CNN, of images as bytes."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """[B, 3, 32, 32] bytes to [B, classes] logits."""
        return super().forward(pixels.float().sub_(MEAN).mul_(SCALE))


new_optimizer = functools.partial(torch.optim.SGD, lr=RATE, momentum=MOMENTUM, weight_decay=DECAY, fused=True)


@functools.cache
def client_tensors(client: int, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A client's images [n, 3, 32, 32] as bytes, and its labels [n]."""
    images, labels = client_samples(client, samples)
    return torch.from_numpy(images.transpose(0, 3, 1, 2).copy()), torch.from_numpy(labels)


def train_client(model: Network, client: int, samples: int) -> None:
    """One epoch in shuffled batches, with a new optimiser."""
    images, labels = client_tensors(client, samples)
    optimizer = new_optimizer(model.parameters())
    for rows in torch.randperm(samples).split(BATCH):
        loss = F.cross_entropy(model(images[rows]), labels[rows])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
