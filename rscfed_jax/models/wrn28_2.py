"""Wide ResNet 28-2, SemiFL's network for CIFAR-10 and SVHN."""

import flax.linen as nn
import jax.numpy as jnp

from rscfed_jax.config import Config
from rscfed_jax.models.wide_resnet import WideResNet

NAME = "wrn28-2"
SMALLEST_SIDE = 8  # which it halves twice


def network(config: Config, classes: int) -> nn.Module:
    """The network of a config."""
    return WideResNet(classes, widen=2, conv=config.conv, dtype=jnp.dtype(config.dtype))
