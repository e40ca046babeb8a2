"""The table that training reads: packed images, samples sorted by client, hidden labels."""

import numpy as np
import pytest

from rscfed_jax.data import table
from rscfed_jax.data.federation import Federation
from rscfed_jax.data.loaders.synthetic import synthetic
from rscfed_jax.data.resize import resize
from rscfed_jax.data.table import ALIGNMENT, HIDDEN, SHARED, pack_pixels, train_table

SIZES = (3, 17, 8, 25, 10)
DATASET = synthetic(train=80, test=30, classes=3, size=18, channels=3, seed=0)


def federation(*, labeled=(1, 4), sizes=SIZES, seed=0):
    """Clients of those sizes that hold random samples; the labeled ones see the label of every sample but the first."""
    samples = np.split(np.random.default_rng(seed).permutation(80)[: sum(sizes)], np.cumsum(sizes)[:-1])
    visible = [(np.arange(size) > 0) & (client in labeled) for client, size in enumerate(sizes)]
    return Federation(DATASET, samples, visible)


def unpacked(words):
    """[..., 3] bytes of packed pixels."""
    return words[..., None].view(np.uint8)[..., :3]


def test_packed_pixels_hold_red_green_and_blue_from_the_lowest_byte_on():
    images = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), dtype=np.uint8)
    words = pack_pixels(images)
    assert words.ctypes.data % ALIGNMENT == 0
    np.testing.assert_array_equal(words, images.astype(np.uint32) @ np.array([1, 2**8, 2**16], np.uint32))
    np.testing.assert_array_equal(unpacked(pack_pixels(images[..., :1])), images[..., :1].repeat(3, axis=-1))


def test_samples_are_sorted_by_client_with_their_images_and_visible_labels():
    held = federation()
    data = train_table([held], image_size=16)
    assert data["images"].shape == (sum(SIZES), 20, 20)
    large = resize(DATASET.train_images, 20)
    for client, (start, size) in enumerate(zip(data["starts"][0], data["sizes"][0], strict=True)):
        assert size == SIZES[client]
        rows, labels = data["image_ids"][0, start : start + size], data["labels"][0, start : start + size]
        np.testing.assert_array_equal(unpacked(data["images"][rows]), large[held.samples[client]])
        visible = held.label_visible[client]
        np.testing.assert_array_equal(labels[visible], DATASET.train_labels[held.samples[client]][visible])
        assert (labels[~visible] == HIDDEN).all()
    assert data["labeled"].tolist() == [[False, True, False, False, True]]
    assert data["unlabeled"].all()
    assert data["labeled_ids"].tolist() == [[1, 4]]
    np.testing.assert_array_equal(data["positions"], np.arange(32))


def test_class_counts_are_those_of_visible_labels():
    held = federation()
    counts = train_table([held], image_size=16)["class_counts"]
    assert counts.shape == (1, 5, 3)
    assert counts.dtype == np.int32
    for client, (samples, visible) in enumerate(zip(held.samples, held.label_visible, strict=True)):
        seen = DATASET.train_labels[samples][visible].tolist()
        assert counts[0, client].tolist() == [seen.count(label) for label in range(3)]


def test_hidden_labels_leave_no_trace_in_the_table():
    held = federation()
    hidden = np.concatenate(held.samples)[~np.concatenate(held.label_visible)]
    labels = DATASET.train_labels.copy()
    labels[hidden] = (labels[hidden] + 1) % 3
    changed = held._replace(dataset=DATASET._replace(train_labels=labels))
    assert (changed.class_counts != held.class_counts).any()
    before, after = (train_table([each], image_size=16) for each in (held, changed))
    for name in before.keys() - {"truth"}:  # by which pseudo-labels are judged: tests/core/test_truth.py
        np.testing.assert_array_equal(before[name], after[name])


def test_federations_share_images_and_agree_with_tables_of_their_own():
    federations = [federation(), federation(labeled=(0, 2), sizes=(20, 30, 12, 5, 3), seed=1)]
    together = train_table(federations, image_size=16, resize_to=18)
    assert [name for name, array in together.items() if len(array) != 2 or name in SHARED] == list(SHARED)
    for place, each in enumerate(federations):
        alone = train_table([each], image_size=16, resize_to=18)
        total = sum(each.sizes)
        np.testing.assert_array_equal(
            together["images"][together["image_ids"][place, :total]], alone["images"][alone["image_ids"][0]]
        )
        for name in ("labels", "truth"):
            np.testing.assert_array_equal(together[name][place, :total], alone[name][0])
        for name in set(alone) - {*SHARED, "image_ids", "labels", "truth"}:
            np.testing.assert_array_equal(together[name][place], alone[name][0])


@pytest.mark.parametrize("size", [16, 18])
def test_the_test_set_has_the_models_input_size(size):
    test = table.test_table(DATASET, image_size=size)
    np.testing.assert_array_equal(unpacked(test["images"]), resize(DATASET.test_images, size))
    np.testing.assert_array_equal(test["labels"], DATASET.test_labels)
    data = train_table([federation()], image_size=size)
    for name in ("mean", "std"):
        np.testing.assert_array_equal(test[name], data[name])
