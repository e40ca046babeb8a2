"""Fashion-MNIST: a balanced subset that is embedded in the package.

From https://github.com/zalandoresearch/fashion-mnist; its licence is in data/fashion_mnist_LICENSE.txt.
"""

from importlib import resources

import numpy as np

from rscfed_jax.config import Config
from rscfed_jax.data.dataset import Dataset

HELP = "embedded Fashion-MNIST subset"
SEEDED = False
CLASSES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


def load(config: Config) -> Dataset:
    """12,000 training and 2,000 test images, 28x28 grey."""
    del config
    with (
        resources.files("rscfed_jax.data").joinpath("fashion_mnist_14k.npz").open("rb") as file,
        np.load(file, allow_pickle=False) as arrays,
    ):
        return Dataset(
            train_images=arrays["train_images"][..., None],
            train_labels=arrays["train_labels"].astype(np.int32),
            test_images=arrays["test_images"][..., None],
            test_labels=arrays["test_labels"].astype(np.int32),
            classes=len(CLASSES),
            origin="embedded in the package",
            class_names=CLASSES,
        )
