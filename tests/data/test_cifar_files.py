"""CIFAR-10 and CIFAR-100 from their archives."""

import io
import os
import pickle
import tarfile

import numpy as np
import pytest

from rscfed_jax.config import SettingError
from rscfed_jax.data.load import load_dataset
from rscfed_jax.data.loaders import cifar10, cifar100

LAYOUTS = {"cifar10": cifar10.LAYOUT, "cifar100": cifar100.LAYOUT}
PYTHON, BINARY = 0, 1


def batch(rng, layout):
    return rng.integers(0, 256, (2, 3072), dtype=np.uint8), [layout.classes - 1, 1]


def as_file(images, labels, layout, form):
    if form == PYTHON:
        content = {b"data": images, layout.label_key.encode(): labels, b"filenames": [b"a", b"b"]}
        return pickle.dumps(content, protocol=2)
    before = np.zeros((2, layout.labels_before), np.uint8)
    before[:, -1] = labels
    return np.concatenate([before, images], axis=1).tobytes()


def write(folder, name, form, *, packed):
    """A tiny data set in the form of the official one; returns its training images and labels."""
    layout, rng = LAYOUTS[name], np.random.default_rng(0)
    files, train = {}, []
    for split, names in layout.files[form].items():
        for file in names:
            images, labels = batch(rng, layout)
            files[f"{layout.folders[form]}/{file}"] = as_file(images, labels, layout, form)
            if split == "train":
                train.append((images, labels))
    pack(folder / layout.archives[form], files) if packed else unpack(folder, files)
    return np.concatenate([images for images, _ in train]), np.concatenate([labels for _, labels in train])


def pack(path, files):
    with tarfile.open(path, "w:gz") as archive:
        for file, content in files.items():
            info = tarfile.TarInfo(file)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def unpack(folder, files):
    for file, content in files.items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_bytes(content)


@pytest.mark.parametrize("packed", [False, True], ids=["unpacked", "packed"])
@pytest.mark.parametrize("form", [PYTHON, BINARY], ids=["python", "binary"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_official_form_is_read_exactly(tmp_path, name, form, packed):
    images, labels = write(tmp_path, name, form, packed=packed)
    data = load_dataset(name, data_dir=str(tmp_path))
    np.testing.assert_array_equal(data.train_labels, labels)
    # A row holds the red plane, then the green, then the blue one.
    np.testing.assert_array_equal(data.train_images[:, 3, 5, 1], images[:, 1024 + 3 * 32 + 5])
    np.testing.assert_array_equal(data.train_images.transpose(0, 3, 1, 2).reshape(-1, 3072), images)
    assert data.classes == LAYOUTS[name].classes
    assert data.test_images.shape == (2, 32, 32, 3)
    assert data.mean == {"cifar10": None, "cifar100": cifar100.MEAN}[name]


def test_what_is_missing_is_named_with_its_place(tmp_path):
    with pytest.raises(
        SettingError, match=r"not found in .* put cifar-10-python.tar.gz or cifar-10-binary.tar.gz"
    ) as error:
        load_dataset("cifar10", data_dir=str(tmp_path))
    assert "from https://www.cs.toronto.edu/~kriz/cifar.html, or use --download (170 MB)" in str(error.value)


@pytest.mark.parametrize(("name", "module"), [("cifar10", cifar10), ("cifar100", cifar100)])
def test_a_download_brings_the_python_archive(server, tmp_path, monkeypatch, name, module):
    _, labels = write(tmp_path, name, PYTHON, packed=True)
    archive = tmp_path / module.LAYOUT.archives[PYTHON]
    assert module.LAYOUT.published.name == archive.name
    published = server.publish(archive.name, archive.read_bytes())
    monkeypatch.setattr(module, "LAYOUT", module.LAYOUT._replace(published=published))
    archive.unlink()
    data = load_dataset(name, data_dir=str(tmp_path / "data"), download=True)
    np.testing.assert_array_equal(data.train_labels, labels)
    assert [path.name for path in (tmp_path / "data").iterdir()] == [archive.name]


def test_a_missing_batch_is_named(tmp_path):
    write(tmp_path, "cifar10", PYTHON, packed=False)
    (tmp_path / "cifar-10-batches-py" / "data_batch_4").unlink()
    with pytest.raises(SettingError, match="data_batch_4 is missing"):
        load_dataset("cifar10", data_dir=str(tmp_path))


class Evil:
    """Asks the reader to run a command."""

    def __reduce__(self):
        return os.system, ("true",)


def wrong_pickle(**changes):
    content = {"data": np.zeros((2, 3072), np.uint8), "fine_labels": [0, 1]} | changes
    return pickle.dumps({key: value for key, value in content.items() if value is not None}, protocol=2)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (pickle.dumps(Evil()), r"asks for posix.system, which is never loaded"),
        (wrong_pickle(fine_labels=None), "holds no data and fine_labels"),
        (wrong_pickle(fine_labels=[0, 100]), "labels from 0 to 99"),
        (wrong_pickle(fine_labels=[0, -1]), "labels from 0 to 99"),
        (wrong_pickle(fine_labels=[0]), "one whole number per image"),
        (wrong_pickle(data=np.zeros((2, 100), np.uint8)), "images of 3072 values"),
        (wrong_pickle(data=[1, 2]), "images of 3072 values"),
        (wrong_pickle()[:-50], "is damaged"),
        (b"", "is damaged"),
        (b"nonsense", "is damaged"),
    ],
)
def test_a_wrong_pickle_is_refused(tmp_path, content, reason):
    write(tmp_path, "cifar100", PYTHON, packed=False)
    (tmp_path / "cifar-100-python" / "train").write_bytes(content)
    with pytest.raises(SettingError, match=reason) as error:
        load_dataset("cifar100", data_dir=str(tmp_path))
    assert "cifar-100-python/train" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_truncated_binary_file_is_refused(tmp_path):
    write(tmp_path, "cifar100", BINARY, packed=False)
    path = tmp_path / "cifar-100-binary" / "train.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SettingError, match="not a multiple of 3074"):
        load_dataset("cifar100", data_dir=str(tmp_path))


@pytest.mark.parametrize("kept", [0, 10, 0.5])
def test_a_truncated_archive_is_refused(tmp_path, kept):
    write(tmp_path, "cifar100", PYTHON, packed=True)
    path = tmp_path / "cifar-100-python.tar.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept) if isinstance(kept, float) else kept])
    with pytest.raises(SettingError, match="damaged or incomplete"):
        load_dataset("cifar100", data_dir=str(tmp_path))


def test_an_archive_of_something_else_is_refused(tmp_path):
    pack(tmp_path / "cifar-100-python.tar.gz", {"../../escape": b"x"})
    with pytest.raises(SettingError, match="must hold cifar-100-python/train"):
        load_dataset("cifar100", data_dir=str(tmp_path))
    assert not (tmp_path.parent.parent / "escape").exists()
