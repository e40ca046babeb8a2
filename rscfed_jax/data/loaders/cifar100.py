"""CIFAR-100 with its fine labels: the official python or binary archive, packed or unpacked, or TFDS.

From https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from rscfed_jax.config import Config
from rscfed_jax.data.cifar_files import SOURCE, Layout, load_cifar
from rscfed_jax.data.dataset import Dataset
from rscfed_jax.data.download import Published

HELP = "CIFAR-100 from its archive or TFDS"
SEEDED = False
MEAN = (0.5070752, 0.4865489, 0.4409178)
STD = (0.2673343, 0.2564385, 0.2761505)
LAYOUT = Layout(
    classes=100,
    label_key="fine_labels",
    labels_before=2,
    archives=("cifar-100-python.tar.gz", "cifar-100-binary.tar.gz"),
    folders=("cifar-100-python", "cifar-100-binary"),
    files=({"train": ["train"], "test": ["test"]}, {"train": ["train.bin"], "test": ["test.bin"]}),
    published=Published(f"{SOURCE}/cifar-100-python.tar.gz", md5="eb9058c3a382ffc7106e4002c42a8d85", size=169_001_437),
)


def load(config: Config) -> Dataset:
    """50,000 training and 10,000 test images of 100 classes, 32x32, in the official order unless TFDS has lost it."""
    return load_cifar(config, LAYOUT)._replace(mean=MEAN, std=STD)
