"""ResNet-18 with the paper's MLP head, for ISIC."""

import flax.linen as nn
import jax.numpy as jnp

from rscfed_jax.config import Config
from rscfed_jax.models.resnet import ResNet

SMALLEST_SIDE = 16  # which it halves up to five times


def network(config: Config, classes: int) -> nn.Module:
    """The network of a config."""
    return ResNet18(classes, conv=config.conv, stem=config.stem, dtype=jnp.dtype(config.dtype))


class ResNet18(ResNet):
    """Backbone with 512 features, MLP head 512-512-256, classifier; the published code has the stem `cifar`."""

    widths: tuple[int, ...] = (64, 128, 256, 512)
    blocks: int = 2
    head: tuple[int, int] | None = (512, 256)
