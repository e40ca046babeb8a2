"""A trained global model, ready to classify images."""

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from rscfed_jax.core.augment import normalise
from rscfed_jax.core.metrics import batch_of
from rscfed_jax.core.pixels import unpack_pixels
from rscfed_jax.core.types import Array, Model
from rscfed_jax.data.resize import resize
from rscfed_jax.data.table import pack_pixels


@dataclass(frozen=True)
class Classifier:
    """A network, its trained parameters, and what an image must be like before it sees it."""

    network: nn.Module
    model: Model  # flax variables
    image_size: int  # side of the network's input, in pixels
    mean: Array  # [3] of the training images, whose values are from 0 to 255
    std: Array  # [3]

    def predict(self, images: np.ndarray) -> np.ndarray:
        """[B, classes] probabilities for [B, H, W, 1 or 3] uint8 images of any size."""
        if images.dtype != np.uint8 or images.ndim != 4:
            raise ValueError(f"images must be uint8 of shape B,H,W,C, not {images.dtype} of shape {images.shape}")
        side, parts = self.image_size, []
        batch = batch_of(side, side)
        for start in range(0, len(images), batch):
            words = jnp.asarray(pack_pixels(resize(images[start : start + batch], side)))
            pixels = normalise(unpack_pixels(words.transpose(1, 2, 0)), self.mean, self.std, self.network.dtype)
            logits = self.network.apply(self.model, pixels, train=False)
            parts.append(np.asarray(jax.nn.softmax(logits.astype(jnp.float32))))
        return np.concatenate(parts) if parts else np.zeros((0, self.network.classes), np.float32)
