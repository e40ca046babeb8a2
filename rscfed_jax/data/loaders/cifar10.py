"""CIFAR-10: the official python or binary archive, packed or unpacked, or TFDS.

From https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from rscfed_jax.config import Config
from rscfed_jax.data.cifar_files import SOURCE, Layout, load_cifar
from rscfed_jax.data.dataset import Dataset
from rscfed_jax.data.download import Published

HELP = "CIFAR-10 from its archive or TFDS"
SEEDED = False
LAYOUT = Layout(
    classes=10,
    label_key="labels",
    labels_before=1,
    archives=("cifar-10-python.tar.gz", "cifar-10-binary.tar.gz"),
    folders=("cifar-10-batches-py", "cifar-10-batches-bin"),
    files=(
        {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]},
        {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]},
    ),
    published=Published(f"{SOURCE}/cifar-10-python.tar.gz", md5="c58f30108f718f92721af3b95e74349a", size=170_498_071),
)


def load(config: Config) -> Dataset:
    """50,000 training and 10,000 test images, 32x32, in the official order unless TFDS has lost it."""
    return load_cifar(config, LAYOUT)
