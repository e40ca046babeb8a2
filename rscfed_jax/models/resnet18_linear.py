"""ResNet-18 with one dense layer as its classifier.

CBAFed trains it with `--stem imagenet` (torchvision's ResNet-18), SemiAnAgg with `--stem cifar`.
"""

import flax.linen as nn
import jax.numpy as jnp

from rscfed_jax.config import Config
from rscfed_jax.models.resnet18 import ResNet18

NAME = "resnet18-linear"
SMALLEST_SIDE = 16  # which it halves up to five times


def network(config: Config, classes: int) -> nn.Module:
    """The network of a config."""
    return ResNet18(classes, head=None, conv=config.conv, stem=config.stem, dtype=jnp.dtype(config.dtype))
