"""Data sets prepared by TFDS."""

import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from rscfed_jax.config import SettingError
from rscfed_jax.data.sources import load_dataset

# Six training and four test images of noise, drawn with the seeds 6 and 4 and prepared by TFDS 4.9.10 in the format
# array_record under the name cifar10.
PREPARED = Path(__file__).parent.parent / "golden" / "tfds_cifar10.tar.gz"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "nothing"))
    with tarfile.open(PREPARED) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_without_tfds_the_error_says_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(SettingError, match=r"pip install 'rscfed-jax\[tfds\]'"):
        load_dataset("cifar10", data_dir=str(folder))


def test_a_download_without_tfds_says_the_same(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(SettingError, match="TFDS svhn_cropped: tensorflow-datasets is needed"):
        load_dataset("svhn", data_dir=str(tmp_path), download=True)


@pytest.mark.filterwarnings("default")
def test_a_prepared_directory_is_read_exactly_and_without_tensorflow(folder):
    pytest.importorskip("tensorflow_datasets")
    data = load_dataset("cifar10", data_dir=str(folder))
    images = np.stack(list(_drawn(6)))
    order = [[(row == image).all() for row in images].index(True) for image in data.train_images]
    assert sorted(order) == list(range(6))
    assert data.train_labels.tolist() == order
    assert data.test_images.shape == (4, 32, 32, 3)


@pytest.mark.filterwarnings("default")
def test_a_damaged_directory_is_refused(folder):
    pytest.importorskip("tensorflow_datasets")
    next(folder.rglob("*train.array_record*")).write_bytes(b"")
    with pytest.raises(SettingError, match="TFDS cannot read or prepare it"):
        load_dataset("cifar10", data_dir=str(folder))


def _drawn(count):
    rng = np.random.default_rng(count)
    for _ in range(count):
        yield rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
