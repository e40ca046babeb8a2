"""Batch normalisation and residual blocks; activations have the layout [channels, height, width, batch]."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from rscfed_jax.models.layers import Conv


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


class PreActivationBlock(nn.Module):
    """Two 3x3 convolutions, each after its batch-norm and ReLU, beside a shortcut.

    Where the width changes, the shortcut is a 1x1 convolution of the activated input: He et al., ECCV 2016,
    https://arxiv.org/abs/1603.05027, in the form of Wide ResNets.
    """

    features: int
    stride: int
    conv: str
    dtype: DTypeLike
    param_dtype: DTypeLike

    @nn.compact
    def __call__(self, x: Array, *, train: bool, valid: Array | None) -> Array:
        """[C, H, W, B] to [features, H / stride, W / stride, B], rounded up; a stride needs C != features."""
        types = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        conv = partial(Conv, self.features, form=self.conv, **types)
        norm = partial(BatchNorm, **types)
        active = nn.relu(norm(name="bn1")(x, train=train, valid=valid))
        out = conv(3, stride=self.stride, padding=1, name="conv1")(active)
        out = nn.relu(norm(name="bn2")(out, train=train, valid=valid))
        out = conv(3, padding=1, name="conv2")(out)
        if x.shape[0] != self.features:
            x = conv(1, stride=self.stride, name="shortcut")(active)
        return x + out


def mean_pool(x: Array, *, dtype: DTypeLike, param_dtype: DTypeLike) -> Array:
    """[C, H, W, B] to [B, C]: the mean over all positions, summed in `param_dtype`."""
    return jnp.mean(x.astype(param_dtype), axis=(1, 2)).T.astype(dtype)


def max_pool(x: Array) -> Array:
    """[C, H, W, B] to [C, H / 2, W / 2, B], rounded up: the maximum over 3x3 with stride 2 and padding 1."""
    pads = ((0, 0), (1, 1), (1, 1), (0, 0))
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), pads)
