"""Residual networks of basic blocks: He et al., CVPR 2016, https://arxiv.org/abs/1512.03385."""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from rscfed_jax.models.blocks import BasicBlock, BatchNorm, max_pool, mean_pool
from rscfed_jax.models.layers import Conv, dense


class ResNet(nn.Module):
    """Stem, stages of basic blocks, mean over positions, classifier; between the last two perhaps an MLP.

    The stem `cifar` is a 3x3 convolution, `imagenet` a 7x7 one with stride 2 and a max-pool. Every stage but the first
    halves the image. Initial values: torchvision's for convolutions (He by fan-out) and batch-norm (one and zero),
    PyTorch's default for dense layers.
    """

    classes: int
    widths: tuple[int, ...]  # of the stages; the stem has the first
    blocks: int  # in each stage
    head: tuple[int, int] | None = None  # hidden and output width of the MLP
    conv: str = "auto"
    stem: str = "cifar"
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, images: Array, *, train: bool, valid: Array | None = None) -> Array:
        """[3, H, W, B] images to [B, classes] logits; in training, `valid` [B] says which count in the statistics."""
        types = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        size, stride, padding = (3, 1, 1) if self.stem == "cifar" else (7, 2, 3)
        stem = Conv(self.widths[0], size, stride=stride, padding=padding, form=self.conv, **types, name="stem_conv")
        x = nn.relu(BatchNorm(**types, name="stem_bn")(stem(images), train=train, valid=valid))
        if self.stem == "imagenet":
            x = max_pool(x)
        for stage, features in enumerate(self.widths, start=1):
            for block in range(self.blocks):
                stride = 2 if stage > 1 and block == 0 else 1
                layer = BasicBlock(features, stride, self.conv, **types, name=f"layer{stage}_{block}")
                x = layer(x, train=train, valid=valid)
        x = mean_pool(x, **types)
        if self.head is not None:
            hidden, out = self.head
            x = nn.relu(dense(hidden, x.shape[1], **types, name="l1")(x))
            x = dense(out, x.shape[1], **types, name="l2")(x)
        self.sow("intermediates", "features", x)
        return dense(self.classes, x.shape[1], **types, name="l3")(x)
