"""The partition rule, partition files, and the choice of labeled clients."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rscfed_jax.config import SettingError
from rscfed_jax.data import partition
from tests import reference


@given(seed=st.integers(0, 10**6), clients=st.integers(2, 8))
def test_the_cap_rule_matches_the_reference(seed, clients):
    rng = np.random.default_rng(seed)
    proportions, sizes = rng.dirichlet(np.ones(clients)), rng.integers(0, 20, clients)
    sizes[0] = 0  # someone is always below the fair share
    ours = partition.capped_proportions(proportions, sizes, 10.0)
    np.testing.assert_allclose(ours, reference.capped_proportions(proportions, sizes, 10.0), rtol=1e-12)
    assert (ours[sizes >= 10] == 0).all()


def test_a_draw_that_gives_the_open_clients_nothing_falls_back_to_equal_parts():
    ours = partition.capped_proportions(np.array([1.0, 0.0, 0.0]), np.array([10, 0, 0]), 10.0)
    np.testing.assert_allclose(ours, [0, 0.5, 0.5])


@given(seed=st.integers(0, 10**6), clients=st.integers(1, 8), gamma=st.floats(0.05, 100))
def test_a_draw_gives_every_sample_to_exactly_one_client(seed, clients, gamma):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 5, 200)
    samples = partition.dirichlet_partition(labels, clients, gamma=gamma, min_size=0, rng=rng)
    assert sorted(np.concatenate(samples).tolist()) == list(range(200))


def test_a_client_gets_nothing_of_later_classes_once_it_holds_its_fair_share():
    for seed in range(5):
        counts = partition.draw_class_counts(np.full(10, 100), 10, 0.3, np.random.default_rng(seed))
        np.testing.assert_array_equal(counts.sum(axis=0), 100)
        before = np.cumsum(counts, axis=1) - counts
        assert (counts[before >= 100] == 0).all()
        assert (before >= 100).any()


def test_the_whole_draw_is_repeated_until_the_smallest_client_is_large_enough():
    labels = np.repeat(np.arange(4), 50)
    samples = partition.dirichlet_partition(labels, 5, gamma=0.5, min_size=20, rng=np.random.default_rng(0))
    assert min(map(len, samples)) >= 20


def test_a_hopeless_draw_is_given_up_with_the_setting_to_change(monkeypatch):
    monkeypatch.setattr(partition, "MAX_DRAWS", 20)
    labels = np.repeat(np.arange(10), 60)
    with pytest.raises(SettingError, match="600 samples for 50 clients are at most 12 each"):
        partition.dirichlet_partition(labels, 50, gamma=0.3, min_size=13, rng=np.random.default_rng(0))
    with pytest.raises(
        SettingError, match=r"--min-client-size 10: .*in 20 draws .*fewer --clients or a larger --gamma"
    ):
        partition.dirichlet_partition(labels, 50, gamma=0.3, min_size=10, rng=np.random.default_rng(0))


def test_iid_deals_evenly():
    samples = partition.iid_partition(np.zeros(103), 10, min_size=1, rng=np.random.default_rng(0))
    assert {len(part) for part in samples} == {10, 11}
    assert sorted(np.concatenate(samples).tolist()) == list(range(103))


COUNTS = np.array([[5, 0, 9], [3, 2, 4], [9, 9, 1], [2, 2, 2]])


@pytest.mark.parametrize(("number", "expected"), [(1, [1]), (2, [1, 3]), (3, [1, 2, 3])])
def test_most_classes_then_the_largest_smallest_class_then_the_lowest_id(number, expected):
    chosen = partition.choose_labeled(COUNTS, number, "most-classes", np.random.default_rng(0))
    assert chosen.tolist() == expected


def test_first_and_random_choices():
    assert partition.choose_labeled(COUNTS, 2, "first", np.random.default_rng(0)).tolist() == [0, 1]
    drawn = {tuple(partition.choose_labeled(COUNTS, 2, "random", np.random.default_rng(s))) for s in range(20)}
    assert len(drawn) > 2


def test_an_exported_partition_is_read_back(tmp_path):
    samples = [np.array([4, 1]), np.array([0, 2, 3])]
    partition.save_partition(str(tmp_path / "mine.npz"), samples)
    for read, written in zip(partition.load_partition(str(tmp_path / "mine.npz"), 2, 5), samples, strict=True):
        np.testing.assert_array_equal(read, written)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.npz"]


def test_a_published_partition_is_read(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"data_partition": {0: [4, 1], 1: [0, 2, 3]}}, tmp_path / "published.pth")
    samples = partition.load_partition(str(tmp_path / "published.pth"), 2, 5)
    assert [part.tolist() for part in samples] == [[4, 1], [0, 2, 3]]


@pytest.mark.parametrize(
    "content", [{"state_dict": {}}, {"data_partition": [1, 2]}, {"data_partition": Path("x")}, None]
)
def test_another_pth_file_is_refused(tmp_path, content):
    torch = pytest.importorskip("torch")
    path = tmp_path / "published.pth"
    path.write_bytes(b"nonsense") if content is None else torch.save(content, path)
    with pytest.raises(SettingError, match="is not a partition file"):
        partition.load_partition(str(path), 2, 5)


def test_pytorch_does_not_warn_beside_a_refusal(tmp_path):
    """It warns of another pickle protocol; warnings are errors here, so that one that gets through is named."""
    torch = pytest.importorskip("torch")
    torch.save({"data_partition": {0: [4, 1]}}, tmp_path / "published.pth", pickle_protocol=4)
    with pytest.raises(SettingError, match=r"is not a partition file .* \(UnpicklingError\)"):
        partition.load_partition(str(tmp_path / "published.pth"), 1, 5)


def test_a_missing_pth_file_is_refused(tmp_path):
    pytest.importorskip("torch")
    with pytest.raises(SettingError, match="no such file"):
        partition.load_partition(str(tmp_path / "published.pth"), 2, 5)


def test_the_index_that_is_out_of_range_is_named(tmp_path):
    partition.save_partition(str(tmp_path / "mine.npz"), [np.array([-1, 3])])
    with pytest.raises(SettingError, match="client_0 holds index -1, allowed are 0 to 4"):
        partition.load_partition(str(tmp_path / "mine.npz"), 1, 5)
