"""Wide ResNet 28-8, SemiFL's network for CIFAR-100."""

import flax.linen as nn
import jax.numpy as jnp

from rscfed_jax.config import Config
from rscfed_jax.models.wide_resnet import WideResNet

NAME = "wrn28-8"
SMALLEST_SIDE = 8  # which it halves twice


def network(config: Config, classes: int) -> nn.Module:
    """The network of a config."""
    return WideResNet(classes, widen=8, conv=config.conv, dtype=jnp.dtype(config.dtype))
