"""Arrays of different lengths as one."""

import numpy as np
import pytest

from rscfed_jax.data import ragged
from rscfed_jax.data.ragged import Ragged

PARTS = [np.array([3, 1]), np.array([], int), np.array([2]), np.array([0, 1, 1])]


def test_it_is_a_sequence_of_its_parts():
    parts = Ragged.of(PARTS)
    assert [part.tolist() for part in parts] == [[3, 1], [], [2], [0, 1, 1]]
    assert (len(parts), parts[-1].tolist(), parts.sizes.tolist()) == (4, [0, 1, 1], [2, 0, 1, 3])
    assert [part.tolist() for part in parts[1:3]] == [[], [2]]
    assert [part.tolist() for part in parts[:-1]] == [[3, 1], [], [2]]
    assert Ragged.of(parts) is parts
    with pytest.raises(IndexError):
        parts[4]


def test_some_parts_some_values_and_counts():
    parts = Ragged.of(PARTS)
    assert [part.tolist() for part in parts.take(np.array([3, 1, 0]))] == [[0, 1, 1], [], [3, 1]]
    ones = parts.values == 1
    assert parts.how_many(ones).tolist() == [1, 0, 0, 2]
    assert [part.tolist() for part in parts.where(~ones)] == [[3], [], [2], [0]]


@pytest.mark.parametrize("block", [1, 2**23])
def test_a_histogram_counts_block_by_block(monkeypatch, block):
    monkeypatch.setattr(ragged, "BLOCK", block)
    counts = Ragged.of(PARTS).histogram(4)
    np.testing.assert_array_equal(counts, [[0, 1, 0, 1], [0, 0, 0, 0], [0, 0, 1, 0], [1, 2, 0, 0]])


def test_ranks_are_an_order_of_each_part():
    parts = Ragged(np.zeros(60, int), np.array([10, 0, 50]))
    ranks = parts.like(parts.ranks(np.random.default_rng(0)))
    assert [sorted(part.tolist()) for part in ranks] == [list(range(size)) for size in (10, 0, 50)]
    assert ranks[2].tolist() != sorted(ranks[2].tolist())
