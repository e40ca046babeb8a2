"""The residual networks in plain flax, as their papers have them: images [B, H, W, 3], NHWC throughout.

Layers carry our names, so that both share their parameters.
"""

from functools import partial

import flax.linen as nn
import jax.numpy as jnp

TYPES = {"dtype": jnp.float64, "param_dtype": jnp.float64}


def conv(features, size, stride, name):
    """A convolution without bias that keeps the image's size, but for the stride."""
    padding = size // 2
    return nn.Conv(features, (size, size), stride, padding, use_bias=False, **TYPES, name=name)


def norm(train, name):
    """PyTorch's batch-norm, but for the variance that it remembers."""
    return nn.BatchNorm(not train, momentum=0.9, epsilon=1e-5, use_fast_variance=False, **TYPES, name=name)


class Basic(nn.Module):
    """Figure 2 of He et al. (2016), with projection shortcuts."""

    features: int
    stride: int

    @nn.compact
    def __call__(self, x, train):
        """[B, H, W, C] to [B, H / stride, W / stride, features]."""
        out = nn.relu(norm(train, "bn1")(conv(self.features, 3, self.stride, "conv1")(x)))
        out = norm(train, "bn2")(conv(self.features, 3, 1, "conv2")(out))
        if out.shape != x.shape:
            x = norm(train, "downsample_bn")(conv(self.features, 1, self.stride, "downsample_conv")(x))
        return nn.relu(x + out)


class PreActivated(nn.Module):
    """Figure 1 (b) of Zagoruyko and Komodakis: BN, ReLU, convolution, twice."""

    features: int
    stride: int

    @nn.compact
    def __call__(self, x, train):
        """[B, H, W, C] to [B, H / stride, W / stride, features]."""
        first = nn.relu(norm(train, "bn1")(x))
        out = conv(self.features, 3, self.stride, "conv1")(first)
        out = conv(self.features, 3, 1, "conv2")(nn.relu(norm(train, "bn2")(out)))
        return out + (x if x.shape == out.shape else conv(self.features, 1, self.stride, "shortcut")(first))


def stages(block, x, widths, blocks, train):
    """Blocks of each width; the first block of every stage but the first has stride 2."""
    for stage, width in enumerate(widths, start=1):
        for number in range(blocks):
            x = block(width, 2 if stage > 1 and number == 0 else 1, name=f"layer{stage}_{number}")(x, train)
    return x


class ResNet(nn.Module):
    """Convolution, stages, mean, dense layers."""

    classes: int
    widths: tuple
    blocks: int
    stem: str = "cifar"
    head: tuple = ()

    @nn.compact
    def __call__(self, x, train):
        """[B, H, W, 3] to [B, F] features and [B, classes] logits."""
        large = self.stem == "imagenet"
        x = conv(self.widths[0], *((7, 2) if large else (3, 1)), "stem_conv")(x)
        x = nn.relu(norm(train, "stem_bn")(x))
        if large:
            x = nn.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))
        x = jnp.mean(stages(Basic, x, self.widths, self.blocks, train), axis=(1, 2))
        dense = partial(nn.Dense, **TYPES)
        if self.head:
            x = dense(self.head[1], name="l2")(nn.relu(dense(self.head[0], name="l1")(x)))
        return x, dense(self.classes, name="l3")(x)


class WideResNet(nn.Module):
    """Table 1 of Zagoruyko and Komodakis: 16, then 16 k, 32 k and 64 k channels."""

    classes: int
    depth: int
    widen: int

    @nn.compact
    def __call__(self, x, train):
        """[B, H, W, 3] to [B, F] features and [B, classes] logits."""
        x = conv(16, 3, 1, "stem_conv")(x)
        widths = (16 * self.widen, 32 * self.widen, 64 * self.widen)
        x = stages(PreActivated, x, widths, (self.depth - 4) // 6, train)
        x = jnp.mean(nn.relu(norm(train, "bn")(x)), axis=(1, 2))
        return x, nn.Dense(self.classes, **TYPES, name="l3")(x)
