"""The embedded data set."""

import numpy as np

from rscfed_jax.data.load import load_dataset


def test_fashion_is_embedded_and_balanced():
    data = load_dataset("fashion")
    assert data.train_images.shape == (12_000, 28, 28, 1)
    assert data.test_images.shape == (2_000, 28, 28, 1)
    assert np.bincount(data.train_labels).tolist() == [1200] * 10
    assert np.bincount(data.test_labels).tolist() == [200] * 10
