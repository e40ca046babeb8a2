"""Wide residual networks: Zagoruyko and Komodakis, BMVC 2016, https://arxiv.org/abs/1605.07146.

ReLU, no dropout and He's initial values by fan-out, as SemiFL has them. SemiFL keeps no running statistics while it
trains and computes them anew before each evaluation; here they are tracked and averaged, as in the other networks.
"""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from rscfed_jax.models.blocks import BatchNorm, PreActivationBlock, mean_pool
from rscfed_jax.models.layers import Conv, uniform_by_fan_in

STEM_WIDTH = 16
STAGES = 3


class WideResNet(nn.Module):
    """3x3 stem, three stages of pre-activation blocks, batch-norm, mean over positions, classifier.

    The last two stages halve the image. The classifier's bias begins at zero.
    """

    classes: int
    depth: int = 28  # 6 n + 4, with n blocks in each stage
    widen: int = 2  # stages have 16, 32 and 64 times this width
    conv: str = "auto"
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, images: Array, *, train: bool, valid: Array | None = None) -> Array:
        """[3, H, W, B] images to [B, classes] logits; in training, `valid` [B] says which count in the statistics."""
        blocks, rest = divmod(self.depth - 4, 2 * STAGES)
        if blocks < 1 or rest:
            raise ValueError(f"depth {self.depth}: must be 10, 16, 22, 28, ...")
        types = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        x = Conv(STEM_WIDTH, 3, padding=1, form=self.conv, **types, name="stem_conv")(images)
        for stage in range(STAGES):
            features = STEM_WIDTH * self.widen * 2**stage
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                layer = PreActivationBlock(features, stride, self.conv, **types, name=f"layer{stage + 1}_{block}")
                x = layer(x, train=train, valid=valid)
        x = mean_pool(nn.relu(BatchNorm(**types, name="bn")(x, train=train, valid=valid)), **types)
        self.sow("intermediates", "features", x)
        return nn.Dense(self.classes, kernel_init=uniform_by_fan_in(x.shape[1]), **types, name="l3")(x)
