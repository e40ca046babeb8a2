"""Counts of pseudo-labels become shares."""

import numpy as np
import pytest

from rscfed_jax.runner.pseudo_labels import judgement


def test_shares_match_a_count_sample_by_sample():
    rng = np.random.default_rng(0)
    truth, labels = rng.integers(0, 4, (2, 3, 50))  # three rounds of fifty samples
    kept = rng.random((3, 50)) < 0.6
    rounds = [
        [[sum(t == c), sum(k[t == c]), sum(k & (t == c) & (given == c))] for c in range(4)]
        for t, given, k in zip(truth, labels, kept, strict=True)
    ]
    record = judgement(rounds)
    assert record["kept_share"] == pytest.approx(kept.mean())
    assert record["kept_accuracy"] == pytest.approx((labels == truth)[kept].mean())
    for c in range(4):
        assert record["kept_share_by_class"][c] == pytest.approx(kept[truth == c].mean())
        assert record["kept_accuracy_by_class"][c] == pytest.approx((labels == c)[kept & (truth == c)].mean())


def test_without_rounds_there_is_nothing_to_say():
    assert judgement([]) == {}
