"""Final and best metrics of a run's evaluated rounds."""

import numpy as np
import pytest

from rscfed_jax.config.registry import metrics
from rscfed_jax.storage.records import best_of, final_of, pseudo_labels_of


def evaluations(*accuracies, **others):
    return [{"round": round_, "accuracy": accuracy, **others} for round_, accuracy in enumerate(accuracies)]


def test_final_is_the_mean_of_the_last_five_evaluations():
    assert final_of(evaluations(0.1, 0.9, 0.2, 0.3, 0.4, 0.5, 0.6))["accuracy"] == pytest.approx(0.4)


def test_best_is_the_first_round_with_the_highest_accuracy():
    best = best_of(evaluations(0.1, 0.3, 0.7, 0.7, auc=0.5))
    assert (best["round"], best["accuracy"], best["auc"]) == (2, 0.7, 0.5)


def test_the_initial_model_counts_only_where_there_is_no_other():
    assert final_of(evaluations(0.9, 0.1, 0.2))["accuracy"] == pytest.approx(0.15)
    assert best_of(evaluations(0.9, 0.1, 0.2))["round"] == 2
    assert final_of(evaluations(0.9))["accuracy"] == 0.9
    assert best_of(evaluations(0.9))["round"] == 0


def test_a_metric_that_an_older_version_did_not_record_is_none():
    records = evaluations(0.1, 0.2, 0.3)
    assert list(final_of(records)) == list(metrics())
    assert list(best_of(records)) == ["round", *metrics()]
    assert final_of(records)["auc"] is best_of(records)["auc"] is None


def test_a_run_resumed_by_a_newer_version_has_the_mean_of_what_was_recorded():
    records = evaluations(0.1, 0.2, 0.3, 0.4)
    records[2]["auc"], records[3]["auc"] = 0.6, 0.8
    assert final_of(records)["auc"] == pytest.approx(0.7)


def test_a_metric_that_is_undefined_stays_so():
    assert np.isnan(final_of(evaluations(0.1, 0.2, auc=float("nan")))["auc"])


def test_pseudo_labels_are_the_mean_of_the_last_evaluations_that_have_them():
    records = evaluations(*[0.5] * 8)
    assert pseudo_labels_of(records) is None
    for record in records[1:]:
        record |= {"kept_share": record["round"] / 10, "kept_accuracy": None}
    assert pseudo_labels_of(records) == {"kept_share": pytest.approx(0.5), "kept_accuracy": None}
