"""One RSCFed round in eager PyTorch, with the mathematics of this project: what a user would otherwise run.

`lean`: images in memory as tensors, augmentation of whole batches by one gather, fused optimiser and EMA operations,
all threads. `published`: the same loop fed as the published code does it, by per-image Pillow transforms and a
DataLoader.
"""

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

TAU, LAMBDA_U, KEEP, BETA, CLIP = 0.5, 0.02, 0.999, 10_000.0, 5.0
RATES = {True: 0.03, False: 0.021}


class SimpleCNN(nn.Module):
    """The paper's simple CNN."""

    def __init__(self, classes: int = 10):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2 = nn.Linear(400, 120), nn.Linear(120, 84)
        self.l1, self.l2, self.l3 = nn.Linear(84, 84), nn.Linear(84, 256), nn.Linear(256, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, 3, 32, 32] images to [B, classes] logits."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)
        x = F.relu(self.fc2(F.relu(self.fc1(x))))
        return self.l3(self.l2(F.relu(self.l1(x))))


class LeanFeed:
    """Batches of a client, cropped at random from [n, 3, 40, 40] tensors, whole batches at once."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, mean: np.ndarray, std: np.ndarray, batch: int):
        self.images = torch.from_numpy(images.transpose(0, 3, 1, 2).copy())  # [n, 3, 40, 40] uint8
        self.labels = torch.from_numpy(labels.astype(np.int64))
        self.mean = torch.from_numpy(mean).view(1, 3, 1, 1)
        self.scale = 1 / torch.from_numpy(std).view(1, 3, 1, 1)
        self.batch = batch
        self.flat = self.images.reshape(len(images), 3, 1600)
        steps = torch.arange(32)
        self.window = (steps[:, None] * 40 + steps).view(1, 1024)

    def _crop(self, rows: torch.Tensor) -> torch.Tensor:
        corner = torch.randint(0, 9, (2, len(rows)))
        places = (corner[0] * 40 + corner[1])[:, None] + self.window  # [B, 1024]
        pixels = self.flat[rows].gather(2, places[:, None].expand(-1, 3, -1))
        return pixels.view(-1, 3, 32, 32).float().sub_(self.mean).mul_(self.scale)

    def batches(self, *, twice: bool):
        """The client's epoch: one view of each sample with its label, or two views."""
        for rows in torch.randperm(len(self.images)).split(self.batch):
            yield (self._crop(rows), self._crop(rows)) if twice else (self._crop(rows), self.labels[rows])


class PublishedFeed(torch.utils.data.Dataset):
    """Batches of a client by Pillow transforms of one 32x32 image at a time, collected by a DataLoader."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, mean: np.ndarray, std: np.ndarray, batch: int):
        self.images, self.labels, self.batch, self.twice = images, labels, batch, False
        self.mean = torch.from_numpy(mean / 255).view(3, 1, 1)
        self.std = torch.from_numpy(std / 255).view(3, 1, 1)

    def __len__(self) -> int:
        return len(self.images)

    def _view(self, image: Image.Image) -> torch.Tensor:
        image = image.resize((40, 40), Image.Resampling.BILINEAR)
        top, left = torch.randint(0, 9, (2,)).tolist()
        image = image.crop((left, top, left + 32, top + 32))
        tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div(255)
        return (tensor - self.mean) / self.std

    def __getitem__(self, index: int):
        """One sample, as tensors."""
        image = Image.fromarray(self.images[index])
        return (self._view(image), self._view(image)) if self.twice else (self._view(image), int(self.labels[index]))

    def batches(self, *, twice: bool):
        """The client's epoch."""
        self.twice = twice
        yield from torch.utils.data.DataLoader(self, batch_size=self.batch, shuffle=True)


class TorchRound:
    """A federation that trains the given subsets, one client after the other."""

    def __init__(self, feeds: list, labeled: list[bool], batch: int):
        torch.manual_seed(0)
        self.feeds, self.labeled, self.batch = feeds, labeled, batch
        self.sizes = torch.tensor([float(len(feed.labels)) for feed in feeds])
        self.model = SimpleCNN()
        self.student, self.teacher = SimpleCNN(), SimpleCNN().requires_grad_(False)
        start = self._copy(self.model)
        self.teachers = [[p.clone() for p in start] for _ in feeds]
        self.momenta = [[torch.zeros_like(p) for p in start] for _ in feeds]

    @staticmethod
    def _copy(model: nn.Module) -> list[torch.Tensor]:
        return [p.detach().clone() for p in model.parameters()]

    def train_client(self, client: int) -> list[torch.Tensor]:
        """The client's parameters after one epoch from the global model."""
        labeled, rate = self.labeled[client], RATES[self.labeled[client]]
        params, teacher = list(self.student.parameters()), list(self.teacher.parameters())
        with torch.no_grad():
            torch._foreach_copy_(params, list(self.model.parameters()))
            torch._foreach_copy_(teacher, self.teachers[client])
        optimizer = torch.optim.SGD(params, lr=rate, momentum=0.9, weight_decay=5e-4, foreach=True)
        for p, buffer in zip(params, self.momenta[client], strict=True):
            optimizer.state[p]["momentum_buffer"] = buffer
        for first, second in self.feeds[client].batches(twice=not labeled):
            if labeled:
                loss = F.cross_entropy(self.student(first), second)
            else:
                with torch.no_grad():
                    target = torch.softmax(self.teacher(first) / TAU, 1)
                loss = LAMBDA_U * (target - torch.softmax(self.student(second), 1)).square().sum() / self.batch
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(params, CLIP, foreach=True)
            optimizer.step()
            if not labeled:
                with torch.no_grad():
                    torch._foreach_lerp_(teacher, params, 1 - KEEP)
        self.teachers[client] = [t.clone() for t in teacher]
        return self._copy(self.student)

    def run(self, subsets: list[list[int]]) -> None:
        """One round: train every client of every subset, agree by distance, average the subsets."""
        agreed = []
        for subset in subsets:
            models = [self.train_client(client) for client in subset]
            sizes, labeled = self.sizes[subset], torch.tensor([self.labeled[c] for c in subset])
            shares = sizes / sizes.sum()
            if labeled.any() and not labeled.all():
                shares = torch.where(labeled, sizes / sizes[labeled].sum(), sizes / sizes[~labeled].sum()) / 2
            flat = torch.stack([torch.cat([p.flatten() for p in model]) for model in models])
            distances = (flat - shares @ flat).norm(dim=1)
            weights = torch.softmax(shares.log() - BETA * distances / sizes, 0)
            agreed.append(weights @ flat)
        torch.nn.utils.vector_to_parameters(torch.stack(agreed).mean(0), self.model.parameters())
