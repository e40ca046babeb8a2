"""The paper's simple CNN: two 5x5 convolutions, two dense layers, a two-layer MLP and a classifier."""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from rscfed_jax.config import Config
from rscfed_jax.models.layers import ConvMaxPool, dense

NAME = "simple-cnn"
SMALLEST_SIDE = 16
SIDE_MULTIPLE = 4


def network(config: Config, classes: int) -> nn.Module:
    """The network of a config."""
    return SimpleCNN(classes, conv=config.conv, dtype=jnp.dtype(config.dtype))


class SimpleCNN(nn.Module):
    """Backbone with 84 features, MLP head 84-84-256, classifier; no dropout, no batch statistics.

    The layers carry the names of the published PyTorch model.
    """

    classes: int
    conv: str = "auto"
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, images: Array, *, train: bool, valid: Array | None = None) -> Array:
        """[3, H, W, B] images to [B, classes] logits; `train` and `valid` [B] matter only to batch statistics."""
        del train, valid
        types = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        x = nn.relu(ConvMaxPool(6, form=self.conv, **types, name="conv1")(images))
        x = nn.relu(ConvMaxPool(16, form=self.conv, **types, name="conv2")(x))
        x = x.reshape(-1, x.shape[-1]).T  # channel, row, column: PyTorch's order
        for name, features in (("fc1", 120), ("fc2", 84), ("l1", 84)):
            x = nn.relu(dense(features, x.shape[1], **types, name=name)(x))
        x = dense(256, x.shape[1], **types, name="l2")(x)
        self.sow("intermediates", "features", x)
        return dense(self.classes, x.shape[1], **types, name="l3")(x)
