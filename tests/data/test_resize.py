"""Resizing."""

import numpy as np
import pytest
from PIL import Image

from rscfed_jax.data.resize import resize

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("side", "new_side"), [(32, 40), (28, 32), (28, 40), (64, 40), (33, 20), (32, 32)])
@pytest.mark.parametrize("channels", [1, 3])
def test_resizing_equals_pillows_bilinear(side, new_side, channels):
    images = RNG.integers(0, 256, (3, side, side, channels), dtype=np.uint8)
    ours = resize(images, new_side)
    for image, resized in zip(images, ours, strict=True):
        picture = Image.fromarray(image.squeeze()).resize((new_side, new_side), Image.Resampling.BILINEAR)
        expected = np.asarray(picture).reshape(resized.shape)
        np.testing.assert_array_equal(resized, expected)


def test_resizing_takes_oblong_images():
    images = RNG.integers(0, 256, (2, 15, 20, 3), dtype=np.uint8)
    expected = np.asarray(Image.fromarray(images[0]).resize((12, 12), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(resize(images, 12)[0], expected)
