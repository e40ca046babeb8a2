"""The published models in PyTorch, with their published names; import only where torch is installed."""

import torch
from torch import nn


class Head(nn.Module):
    """Features, then the MLP and the classifier."""

    def __init__(self, features: nn.Module, width: int, classes: int):
        super().__init__()
        self.features = features
        self.l1 = nn.Linear(width, width)
        self.l2 = nn.Linear(width, 256)
        self.l3 = nn.Linear(256, classes)

    def forward(self, x):
        """[B, 3, H, W] images to [B, classes] logits."""
        x = self.features(x).flatten(1)
        return self.l3(self.l2(torch.relu(self.l1(x))))


class CNNFeatures(nn.Module):
    """Two convolutions and two dense layers; `flat` is 400 for images of 32 pixels."""

    def __init__(self, flat: int):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(flat, 120)
        self.fc2 = nn.Linear(120, 84)

    def forward(self, x):
        """[B, 3, H, W] to [B, 84]."""
        x = torch.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2).flatten(1)
        return torch.relu(self.fc2(torch.relu(self.fc1(x))))


class Block(nn.Module):
    """torchvision's BasicBlock."""

    def __init__(self, channels: int, features: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, features, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(features)
        self.conv2 = nn.Conv2d(features, features, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(features)
        self.downsample = None
        if stride > 1:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, features, 1, stride, bias=False), nn.BatchNorm2d(features)
            )

    def forward(self, x):
        """[B, C, H, W] to [B, features, H / stride, W / stride]."""
        out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(out + (x if self.downsample is None else self.downsample(x)))


def simple_cnn(classes: int, *, size: int) -> nn.Module:
    """The simple CNN for images of `size` pixels."""
    return Head(CNNFeatures(16 * (size // 4 - 3) ** 2), 84, classes)


def resnet18(classes: int, *, stem: str) -> nn.Module:
    """ResNet-18 as a sequence, of which the published code cut off the classifier."""
    if stem == "cifar":
        layers = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    else:
        layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for features in (64, 128, 256, 512):
        stride = 1 if features == 64 else 2
        layers.append(nn.Sequential(Block(channels, features, stride), Block(features, features, 1)))
        channels = features
    return Head(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1)), 512, classes)
