"""How many pseudo-labels were kept and how many of them were right, overall and for each true class."""

from collections.abc import Sequence

import numpy as np

from rscfed_jax.storage.records import Record


def judgement(rounds: Sequence[Sequence[Sequence[int]]]) -> Record:
    """The part of a record that judges rounds by their [classes, 3] counts; empty without rounds.

    The counts are those of unlabeled samples, by true class: seen, kept, labeled right. A sample counts as often as
    a client decided on its label. A share of no samples is None.
    """
    if not rounds:
        return {}
    counts = np.sum(np.array(rounds, np.int64), axis=0)
    by_class = counts.tolist()
    seen, kept, right = counts.sum(axis=0).tolist()
    return {
        "kept_share": _share(kept, seen),
        "kept_accuracy": _share(right, kept),
        "kept_share_by_class": [_share(kept, seen) for seen, kept, _ in by_class],
        "kept_accuracy_by_class": [_share(right, kept) for _, kept, right in by_class],
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
