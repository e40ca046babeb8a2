"""ResNet-18 with the paper's MLP head, for ISIC: He et al., CVPR 2016, https://arxiv.org/abs/1512.03385.

Activations have the layout [channels, height, width, batch].
"""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from rscfed_jax.config import Config
from rscfed_jax.models.layers import Conv, dense

WIDTHS = (64, 128, 256, 512)
BLOCKS = 2  # in each of the four stages
SMALLEST_SIDE = 16  # which it halves up to five times


def network(config: Config, classes: int) -> nn.Module:
    """The network of a config."""
    return ResNet18(classes, conv=config.conv, stem=config.stem, dtype=jnp.dtype(config.dtype))


class BatchNorm(nn.Module):
    """Batch normalisation by PyTorch's rules, in which flax differs: the running variance is the unbiased one.

    Only valid samples count. Statistics are never computed in half precision.
    """

    epsilon: float = 1e-5
    momentum: float = 0.9  # what the running statistics keep of themselves in a step
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Array, *, train: bool, valid: Array | None = None) -> Array:
        """[C, H, W, B] normalised per channel: by its own statistics over `valid` [B], or by the running ones."""
        channels, height, width, batch = x.shape
        scale = self.param("scale", nn.initializers.ones, (channels,), self.param_dtype)
        bias = self.param("bias", nn.initializers.zeros, (channels,), self.param_dtype)
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, (channels,), self.param_dtype)
        running_var = self.variable("batch_stats", "var", jnp.ones, (channels,), self.param_dtype)
        x = x.astype(self.param_dtype)
        if train:
            weights = jnp.ones(batch, x.dtype) if valid is None else valid.astype(x.dtype)
            count = jnp.sum(weights) * (height * width)
            share = weights / jnp.maximum(count, 1)
            mean = jnp.sum(x * share, axis=(1, 2, 3))
            var = jnp.sum((x - _per_channel(mean)) ** 2 * share, axis=(1, 2, 3))
            if not self.is_initializing():
                unbiased = var * (count / jnp.maximum(count - 1, 1))
                running_mean.value = self.momentum * running_mean.value + (1 - self.momentum) * mean
                running_var.value = self.momentum * running_var.value + (1 - self.momentum) * unbiased
        else:
            mean, var = running_mean.value, running_var.value
        factor = scale * jax.lax.rsqrt(var + self.epsilon)
        return ((x - _per_channel(mean)) * _per_channel(factor) + _per_channel(bias)).astype(self.dtype)


def _per_channel(values: Array) -> Array:
    return values[:, None, None, None]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut; the layers carry torchvision's names."""

    features: int
    stride: int
    conv: str
    dtype: DTypeLike
    param_dtype: DTypeLike

    @nn.compact
    def __call__(self, x: Array, *, train: bool, valid: Array | None) -> Array:
        """[C, H, W, B] to [features, H / stride, W / stride, B], rounded up."""
        types = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        conv = partial(Conv, self.features, form=self.conv, **types)
        norm = partial(BatchNorm, **types)
        out = conv(3, stride=self.stride, padding=1, name="conv1")(x)
        out = nn.relu(norm(name="bn1")(out, train=train, valid=valid))
        out = conv(3, padding=1, name="conv2")(out)
        out = norm(name="bn2")(out, train=train, valid=valid)
        if self.stride > 1 or x.shape[0] != self.features:
            x = conv(1, stride=self.stride, name="downsample_conv")(x)
            x = norm(name="downsample_bn")(x, train=train, valid=valid)
        return nn.relu(out + x)


class ResNet18(nn.Module):
    """Backbone with 512 features, MLP head 512-512-256, classifier.

    The stem `cifar`, a 3x3 convolution, is the published code's; `imagenet` is the 7x7 one with stride 2 and a
    max-pool. Initial values: torchvision's for convolutions (He by fan-out) and batch-norm (one and zero), PyTorch's
    default for dense layers.
    """

    classes: int
    conv: str = "auto"
    stem: str = "cifar"
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, images: Array, *, train: bool, valid: Array | None = None) -> Array:
        """[3, H, W, B] images to [B, classes] logits; in training, `valid` [B] says which count in the statistics."""
        types = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        size, stride, padding = (3, 1, 1) if self.stem == "cifar" else (7, 2, 3)
        stem = Conv(WIDTHS[0], size, stride=stride, padding=padding, form=self.conv, **types, name="stem_conv")
        x = nn.relu(BatchNorm(**types, name="stem_bn")(stem(images), train=train, valid=valid))
        if self.stem == "imagenet":
            x = max_pool(x)
        for stage, features in enumerate(WIDTHS, start=1):
            for block in range(BLOCKS):
                stride = 2 if stage > 1 and block == 0 else 1
                layer = BasicBlock(features, stride, self.conv, **types, name=f"layer{stage}_{block}")
                x = layer(x, train=train, valid=valid)
        x = jnp.mean(x.astype(self.param_dtype), axis=(1, 2)).T.astype(self.dtype)
        x = nn.relu(dense(512, x.shape[1], **types, name="l1")(x))
        x = dense(256, x.shape[1], **types, name="l2")(x)
        return dense(self.classes, x.shape[1], **types, name="l3")(x)


def max_pool(x: Array) -> Array:
    """[C, H, W, B] to [C, H / 2, W / 2, B], rounded up: the maximum over 3x3 with stride 2 and padding 1."""
    pads = ((0, 0), (1, 1), (1, 1), (0, 0))
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), pads)
