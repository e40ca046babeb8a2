"""Records of clients in a file: what a checkpoint refers to is never overwritten, and slots are used again."""

import numpy as np
import pytest

from rscfed_jax.config import SettingError
from rscfed_jax.storage.client_file import NO_CLIENTS, FileRecords
from rscfed_jax.storage.client_records import MemoryRecords

SIZE = 5


def record(*values):
    return np.repeat(np.array(values, np.uint8)[:, None], SIZE, axis=1)


def ids(*clients):
    return np.array(clients, np.int32)


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_records_are_read_as_they_were_written(tmp_path, kind):
    records = MemoryRecords(SIZE) if kind == "memory" else FileRecords(tmp_path / "clients.bin", SIZE)
    records.write(ids(900_000, 3), record(1, 2))
    records.write(ids(3), record(4))
    np.testing.assert_array_equal(records.read(ids(3, 7, 900_000)), record(4, 0, 1))
    assert records.clients().tolist() == [3, 900_000]


def test_the_file_is_as_large_as_the_clients_that_were_drawn(tmp_path):
    records = FileRecords(tmp_path / "clients.bin", SIZE)
    for _ in range(3):
        records.write(ids(999_999, 5), record(1, 2))
    assert (tmp_path / "clients.bin").stat().st_size == 2 * SIZE


def test_a_checkpoint_finds_the_records_of_its_round_whatever_came_later(tmp_path):
    path = tmp_path / "clients.bin"
    records = FileRecords(path, SIZE)
    records.write(ids(1, 2), record(1, 2))
    first = records.freeze(10, set())
    records.write(ids(2, 3), record(20, 30))
    second = records.freeze(20, {10})
    records.write(ids(1, 2, 3), record(100, 200, 250))
    for index, expected in ((first, record(1, 2, 0)), (second, record(1, 20, 30))):
        again = FileRecords(path, SIZE)
        again.load(index, {10: first, 20: second})
        np.testing.assert_array_equal(again.read(ids(1, 2, 3)), expected)
    assert path.stat().st_size == 7 * SIZE
    again.write(ids(1, 2, 3), record(7, 8, 9))  # over those that no checkpoint refers to
    assert path.stat().st_size == 7 * SIZE


def test_a_checkpoint_without_records_leaves_those_of_older_ones(tmp_path):
    path = tmp_path / "clients.bin"
    records = FileRecords(path, SIZE)
    records.write(ids(1, 2), record(1, 2))
    older = records.freeze(10, set())
    records = FileRecords(path, SIZE)
    records.load(NO_CLIENTS, {10: older})
    records.write(ids(1, 2), record(7, 8))
    records.load(older, {10: older})
    np.testing.assert_array_equal(records.read(ids(1, 2)), record(1, 2))


def test_slots_of_removed_checkpoints_are_used_again(tmp_path):
    path = tmp_path / "clients.bin"
    records = FileRecords(path, SIZE)
    kept: list[int] = []
    for round_ in range(20):
        records.write(ids(1, 2, 3), record(round_, round_, round_))
        records.freeze(round_, set(kept))
        kept = [*kept, round_][-3:]
    assert path.stat().st_size <= 5 * 3 * SIZE


def test_a_damaged_record_is_noticed(tmp_path):
    path = tmp_path / "clients.bin"
    records = FileRecords(path, SIZE)
    records.write(ids(1, 2), record(1, 2))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert records.read(ids(1)).tolist() == [[1] * SIZE]
    with pytest.raises(SettingError, match="the state of client 2 is damaged"):
        records.read(ids(2))
    path.write_bytes(b"")
    with pytest.raises(SettingError, match="the state of client 1 is damaged"):
        records.read(ids(1))
