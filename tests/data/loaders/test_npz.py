"""A user's own images in an npz file."""

import numpy as np
import pytest

from rscfed_jax.config import Config, SettingError
from rscfed_jax.data import images, npzfile
from rscfed_jax.data.dataset import normalisation
from rscfed_jax.data.load import dataset_of, load_dataset


def arrays(count=20, **changes):
    rng = np.random.default_rng(0)
    good = {
        "train_images": rng.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8),
        "train_labels": np.arange(count) % 4,
        "test_images": rng.integers(0, 256, (8, 8, 8, 3), dtype=np.uint8),
        "test_labels": np.arange(8) % 4,
    }
    return {key: value for key, value in (good | changes).items() if value is not None}


def test_npz_is_read_as_it_is(tmp_path):
    content = arrays()
    np.savez(tmp_path / "mine.npz", **content)
    data = load_dataset("npz:mine.npz", data_dir=str(tmp_path))
    np.testing.assert_array_equal(data.train_images, content["train_images"])
    np.testing.assert_array_equal(data.test_labels, content["test_labels"])
    assert data.classes == 4


def test_npz_without_test_arrays_is_split_80_to_20_by_the_seed(tmp_path):
    np.savez(tmp_path / "mine.npz", **arrays(test_images=None, test_labels=None))
    one, same, other = (load_dataset(f"npz:{tmp_path}/mine.npz", seed=seed) for seed in (0, 0, 1))
    assert (len(one.train_images), len(one.test_images)) == (16, 4)
    np.testing.assert_array_equal(one.test_images, same.test_images)
    assert (one.test_images != other.test_images).any()


BAD_NPZ = {
    "missing labels": (arrays(train_labels=None), "lacks train_labels"),
    "half a test set": (arrays(test_labels=None), "lacks test_labels"),
    "float images": (arrays(train_images=np.zeros((20, 8, 8, 3))), "train_images must be uint8, not float64"),
    "flat images": (arrays(train_images=np.zeros((20, 64), np.uint8)), "must have shape N,H,W,1 or N,H,W,3, not 20,64"),
    "four channels": (arrays(test_images=np.zeros((8, 8, 8, 4), np.uint8)), "must have shape"),
    "no images": (
        arrays(train_images=np.zeros((0, 8, 8, 3), np.uint8), train_labels=np.zeros(0, int)),
        "holds no images",
    ),
    "too few labels": (arrays(train_labels=np.zeros(3, int)), "one number per image"),
    "float labels": (arrays(train_labels=np.zeros(20)), "must be whole numbers"),
    "negative label": (arrays(train_labels=np.arange(20) - 1), "must be from 0 to classes - 1"),
    "huge label": (arrays(train_labels=np.arange(20) * 1000), "must be from 0 to classes - 1"),
    "unknown test class": (arrays(test_labels=np.arange(8)), "test_labels holds 7, but train_labels only 0 to 3"),
    "one class": (arrays(train_labels=np.zeros(20, int), test_labels=np.zeros(8, int)), "at least two classes"),
    "one test class": (arrays(test_labels=np.zeros(8, int)), "test set must hold samples of at least two classes"),
    "a number for images": (
        {"train_images": np.uint8(1), "train_labels": np.arange(3)},
        "train_images must have shape",
    ),
    "other test size": (arrays(test_images=np.zeros((8, 9, 9, 3), np.uint8)), "same height, width and channels"),
}


@pytest.mark.parametrize("case", BAD_NPZ)
def test_a_wrong_npz_is_refused_with_the_reason(tmp_path, case):
    content, reason = BAD_NPZ[case]
    np.savez(tmp_path / "bad.npz", **content)
    with pytest.raises(SettingError) as error:
        load_dataset(f"npz:{tmp_path}/bad.npz")
    assert reason in str(error.value)
    assert "bad.npz" in str(error.value)


@pytest.mark.parametrize("seed", range(8))
def test_a_split_may_hold_out_the_only_sample_of_a_class(tmp_path, seed):
    labels = np.array([0, 1] * 9 + [2, 0])
    np.savez(tmp_path / "mine.npz", **arrays(train_labels=labels, test_images=None, test_labels=None))
    assert load_dataset(f"npz:{tmp_path}/mine.npz", seed=seed).classes == 3


IDS = {
    "numbers": np.arange(20) % 3,
    "numbers with gaps": np.array([7, 1047, 3])[np.arange(20) % 3],
    "texts": np.array(["anna", "ben", "cleo"])[np.arange(20) % 3],
    "bytes": np.array([b"anna", b"ben", b"cleo"])[np.arange(20) % 3],
}


@pytest.mark.parametrize("which", IDS)
def test_train_clients_name_the_clients_and_their_number_follows(tmp_path, which):
    np.savez(tmp_path / "mine.npz", **arrays(train_clients=IDS[which]))
    config = Config(dataset=f"npz:{tmp_path}/mine.npz")
    assert (config.clients, config.partition, config.gamma, config.subset_size) == (3, "natural", None, 3)
    np.testing.assert_array_equal(dataset_of(config).train_clients, IDS[which])


def test_without_test_arrays_a_fifth_of_each_client_is_held_out_and_no_client_loses_all(tmp_path):
    ids = np.array([0] * 10 + [1] * 6 + [2] * 3 + [3])
    np.savez(tmp_path / "mine.npz", **arrays(train_clients=ids, test_images=None, test_labels=None))
    data = load_dataset(f"npz:{tmp_path}/mine.npz")
    assert np.bincount(data.train_clients).tolist() == [8, 5, 2, 1]
    assert len(data.test_labels) == 4
    other = load_dataset(f"npz:{tmp_path}/mine.npz", seed=1)
    assert (other.test_images != data.test_images).any()


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        (np.arange(19) % 3, "train_clients must be one client per image (20), not of shape (19,)"),
        (np.zeros((20, 1), int), "one client per image (20), not of shape (20, 1)"),
        (np.zeros(0, int), "one client per image (20), not of shape (0,)"),
        (np.arange(20.0) % 3, "train_clients must be whole numbers or strings, not float64"),
        (np.arange(20) % 3 - 1, "train_clients must be non-negative whole numbers, but holds -1"),
    ],
)
def test_wrong_ids_of_clients_are_refused(tmp_path, ids, reason):
    np.savez(tmp_path / "bad.npz", **arrays(train_clients=ids))
    with pytest.raises(SettingError) as error:
        load_dataset(f"npz:{tmp_path}/bad.npz")
    assert reason in str(error.value)


def test_a_file_that_changes_is_asked_again(tmp_path):
    for clients in (3, 4):
        np.savez(tmp_path / "mine.npz", **arrays(count=20 + clients, train_clients=np.arange(20 + clients) % clients))
        assert Config(dataset="npz:mine.npz", data_dir=tmp_path).clients == clients


@pytest.mark.parametrize("test_images", [True, False])
def test_large_images_are_mapped_and_give_the_same_data(tmp_path, monkeypatch, test_images):
    changes = {} if test_images else {"test_images": None, "test_labels": None}
    np.savez(tmp_path / "data.npz", **arrays(**changes))
    config = Config(dataset="npz:data.npz", data_dir=str(tmp_path))
    read = dataset_of(config)
    for module in (images, npzfile):
        monkeypatch.setattr(module, "MAPPED_BYTES", 1000)
    mapped = dataset_of(config)
    assert isinstance(read.train_images, np.ndarray)
    assert isinstance(mapped.train_images, np.memmap | images.ImageSource)
    some = np.array([5, 0, 11])
    np.testing.assert_array_equal(mapped.train_images[some], read.train_images[some])
    np.testing.assert_array_equal(mapped.test_images, read.test_images)
    np.testing.assert_array_equal(normalisation(mapped), normalisation(read))


def test_a_compressed_file_is_read(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "small.npz", **arrays())
    monkeypatch.setattr(npzfile, "MAPPED_BYTES", 1000)
    dataset = dataset_of(Config(dataset="npz:small.npz", data_dir=str(tmp_path)))
    assert not isinstance(dataset.train_images, np.memmap)
