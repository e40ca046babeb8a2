"""ResNet-8 of four times the usual width, as SAGE and ProxyFL train it: one block in each of three stages."""

import flax.linen as nn
import jax.numpy as jnp

from rscfed_jax.config import Config
from rscfed_jax.models.resnet import ResNet

SMALLEST_SIDE = 8  # which it halves twice


def network(config: Config, classes: int) -> nn.Module:
    """The network of a config; its stem is always the 3x3 one."""
    return ResNet8(classes, conv=config.conv, dtype=jnp.dtype(config.dtype))


class ResNet8(ResNet):
    """Backbone with 256 features and a classifier."""

    widths: tuple[int, ...] = (64, 128, 256)
    blocks: int = 1
