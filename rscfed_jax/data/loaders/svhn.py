"""SVHN, the Street View House Numbers: the published MATLAB files, or TFDS.

From http://ufldl.stanford.edu/housenumbers: train_32x32.mat and test_32x32.mat, format 2.
"""

from pathlib import Path

import numpy as np

from rscfed_jax.config import Config
from rscfed_jax.data.dataset import Dataset, check_images, folders, not_found, refuse_file
from rscfed_jax.data.matfile import read_mat
from rscfed_jax.data.prepared import from_tfds

HELP = "Street View House Numbers from MATLAB files or TFDS"
SEEDED = False
FILES = {"train": "train_32x32.mat", "test": "test_32x32.mat"}
MEAN = (0.4376821, 0.4437697, 0.47280442)
STD = (0.19803012, 0.20101562, 0.19703614)
TFDS_NOTE = "; TFDS insists on the extra split, 1.3 GB, so the two files are the shorter way"


def load(config: Config) -> Dataset:
    """73,257 training and 26,032 test images of digits, 32x32, in the official order unless TFDS has lost it."""
    for folder in folders(config):
        if (folder / FILES["train"]).exists():
            train_images, train_labels = _read_mat(config, folder / FILES["train"])
            test_images, test_labels = _read_mat(config, folder / FILES["test"])
            origin = f"{FILES['train']} and {FILES['test']} in {folder}"
            return Dataset(train_images, train_labels, test_images, test_labels, 10, MEAN, STD, origin)
    prepared = from_tfds(config, "svhn_cropped", classes=10)
    if prepared is not None:
        return prepared._replace(mean=MEAN, std=STD)
    raise not_found(config, " and ".join(FILES.values()), also=f", or a prepared TFDS svhn_cropped{TFDS_NOTE}")


def _read_mat(config: Config, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images [S, 32, 32, 3] and labels [S]; the file calls the digit zero 10."""
    refuse = refuse_file(config, path)
    try:
        content = read_mat(path, ("X", "y"))
        images, labels = content["X"], content["y"].reshape(-1)
    except FileNotFoundError:
        raise refuse("no such file") from None
    except KeyError as error:
        raise refuse(f"holds no array {error}") from None
    except OSError as error:
        raise refuse(f"cannot be read: {error.strerror}") from None
    except (ValueError, MemoryError) as error:
        raise refuse(f"is not a readable MATLAB file: it {error}") from None
    if images.ndim != 4 or images.shape[:3] != (32, 32, 3) or labels.dtype.kind not in "iu":
        raise refuse(f"X must be images 32,32,3,N, not {','.join(map(str, images.shape))}, and y whole numbers")
    if not len(labels) or labels.min() < 1 or labels.max() > 10:
        raise refuse("y must hold labels from 1 to 10, 10 for the digit zero")
    images, labels = np.ascontiguousarray(images.transpose(3, 0, 1, 2)), (labels % 10).astype(np.int32)
    check_images(images, labels, path.stem.split("_")[0], refuse)
    return images, labels
