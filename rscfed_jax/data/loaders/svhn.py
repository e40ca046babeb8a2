"""SVHN, the Street View House Numbers: the published MATLAB files, or TFDS.

From http://ufldl.stanford.edu/housenumbers: train_32x32.mat and test_32x32.mat, format 2.
"""

from pathlib import Path

import numpy as np

from rscfed_jax.config import Config
from rscfed_jax.config.limits import OverLimitError
from rscfed_jax.data.dataset import Dataset, check_images, folders, not_found, refuse_file
from rscfed_jax.data.download import Published, fetch, may_download
from rscfed_jax.data.matfile import read_mat
from rscfed_jax.data.prepared import from_tfds

HELP = "Street View House Numbers from MATLAB files or TFDS"
SEEDED = False
SOURCE = "http://ufldl.stanford.edu/housenumbers"
TRAIN = Published(f"{SOURCE}/train_32x32.mat", md5="e26dedcc434d2e4c54c9b2d4a06d8373", size=182_040_794)
TEST = Published(f"{SOURCE}/test_32x32.mat", md5="eb5a983be6a315427106f1b164d9cef3", size=64_275_384)
MEAN = (0.4376821, 0.4437697, 0.47280442)
STD = (0.19803012, 0.20101562, 0.19703614)


def load(config: Config) -> Dataset:
    """73,257 training and 26,032 test images of digits, 32x32, in the official order unless TFDS has lost it."""
    folder = next((folder for folder in folders(config) if (folder / TRAIN.name).exists()), None)
    if folder is None:
        prepared = from_tfds(config, "svhn_cropped", classes=10)
        if prepared is not None:
            return prepared._replace(mean=MEAN, std=STD)
    if may_download(config):
        folder = folder or folders(config)[0]
        fetch(config, (TRAIN, TEST), folder)
    if folder is None:
        ways = ", or use --download (246 MB); a prepared TFDS svhn_cropped also works"
        raise not_found(config, f"{TRAIN.name} and {TEST.name}", source=SOURCE, also=ways)
    train_images, train_labels = _read_mat(config, folder / TRAIN.name)
    test_images, test_labels = _read_mat(config, folder / TEST.name)
    origin = f"{TRAIN.name} and {TEST.name} in {folder}"
    return Dataset(train_images, train_labels, test_images, test_labels, 10, MEAN, STD, origin)


def _read_mat(config: Config, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images [S, 32, 32, 3] and labels [S]; the file calls the digit zero 10."""
    refuse = refuse_file(config, path)
    try:
        content = read_mat(path, ("X", "y"))
        images, labels = content["X"], content["y"].reshape(-1)
    except FileNotFoundError:
        raise refuse(f"no such file; get it from {SOURCE}, or use --download") from None
    except KeyError as error:
        raise refuse(f"holds no array {error}") from None
    except OSError as error:
        raise refuse(f"cannot be read: {error.strerror}") from None
    except OverLimitError as error:
        raise refuse(str(error)) from None
    except (ValueError, MemoryError) as error:
        raise refuse(f"is not a readable MATLAB file: it {error}") from None
    if images.ndim != 4 or images.shape[:3] != (32, 32, 3) or labels.dtype.kind not in "iu":
        raise refuse(f"X must be images 32,32,3,N, not {','.join(map(str, images.shape))}, and y whole numbers")
    if not len(labels) or labels.min() < 1 or labels.max() > 10:
        raise refuse("y must hold labels from 1 to 10, 10 for the digit zero")
    images, labels = np.ascontiguousarray(images.transpose(3, 0, 1, 2)), (labels % 10).astype(np.int32)
    check_images(images, labels, path.stem.split("_")[0], refuse)
    return images, labels
