"""Data sets prepared by TFDS."""

import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rscfed_jax.config import SettingError
from rscfed_jax.data.load import load_dataset

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
        load_dataset("svhn", data_dir=str(tmp_path), download=True, download_from="tfds")


@pytest.mark.filterwarnings("default")
def test_a_prepared_directory_is_read_exactly_and_without_tensorflow(folder):
    pytest.importorskip("tensorflow_datasets")
    data = load_dataset("cifar10", data_dir=str(folder))
    images = np.stack(list(_drawn(6)))
    order = [[(row == image).all() for row in images].index(True) for image in data.train_images]
    assert sorted(order) == list(range(6))
    assert data.train_labels.tolist() == order
    assert data.test_images.shape == (4, 32, 32, 3)


@pytest.mark.parametrize("key", ["pythonClassName", "python_class_name", r"\u0070ythonClassName"])
def test_classes_of_other_packages_are_never_imported(folder, monkeypatch, key):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", SimpleNamespace())
    [file] = folder.rglob("features.json")
    file.write_text('{"featuresDict": {"features": {"image": {"' + key + '": "antigravity.Image"}}}}')
    with pytest.raises(SettingError, match=r"features.json names antigravity.Image, which is never imported"):
        load_dataset("cifar10", data_dir=str(folder))
    file.write_text("[" * 10**5)
    with pytest.raises(SettingError, match=r"features.json is not readable JSON"):
        load_dataset("cifar10", data_dir=str(folder))


@pytest.fixture
def shuffled(tmp_path, monkeypatch):
    """A stand-in for TFDS that hands out four samples in another order than the official one, which their ids tell."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "home"))
    for place in ("data/cifar10/3.0.2", "data/cifar10/3.0.2.incompleteX", "home/cifar10/3.0.2"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "dataset_info.json").write_text("{}")
    row = {"image": np.zeros((32, 32, 3), np.uint8)}
    rows = [row | {"label": label, "id": f"train_{label:05}".encode()} for label in (2, 0, 3, 1)]

    def builder(path):
        return SimpleNamespace(data_path=path, as_data_source=lambda split: rows)

    monkeypatch.setitem(sys.modules, "tensorflow_datasets", SimpleNamespace(builder_from_directory=builder))
    return rows, str(tmp_path / "data")


def test_samples_are_put_back_in_the_official_order(shuffled):
    _, place = shuffled
    data = load_dataset("cifar10", data_dir=place)
    assert data.train_labels.tolist() == data.test_labels.tolist() == [0, 1, 2, 3]
    assert data.origin == f"{place}/cifar10/3.0.2"


def test_a_partition_is_refused_where_the_official_order_is_not_known(shuffled):
    rows, place = shuffled
    del rows[0]["id"]
    assert load_dataset("cifar10", data_dir=place).train_labels.tolist() == [2, 0, 3, 1]
    with pytest.raises(SettingError, match=r"--partition-file p.npz: names samples in the official order"):
        load_dataset("cifar10", data_dir=place, partition_file="p.npz")


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
