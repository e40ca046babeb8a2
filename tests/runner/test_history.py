"""What the host knows of a run: records, means between evaluations, the best model, and why a run diverged."""

import json

import numpy as np
import pytest

from rscfed_jax.config.registry import metrics
from rscfed_jax.core.metrics import Metrics
from rscfed_jax.core.types import RoundReport
from rscfed_jax.runner.history import DivergedError, History, check_finite, summarise
from rscfed_jax.storage.records import MOST_LISTED, PSEUDO_LABELS

SENT = {"models_down": 4, "models_up": 6, "bytes_down": 40, "bytes_up": 60}
FACTS = {"conv": "matmul", "chunk": 1, "seconds_per_round": 2.0, "compile_seconds": 3.0, "devices": 2, "missing": [1]}
NAN = float("nan")


def reports(rounds=1, **changes) -> RoundReport:
    """Host reports of rounds with two subsets of two clients."""
    facts = {
        "subsets": [[0, 2], [2, 3]],
        "weights": [[0.25, 0.75], [0.5, 0.5]],
        "distances": np.ones((2, 2)),
        "labeled_loss": 2.0,
        "consistency_loss": NAN,
        "broken": np.zeros((2, 2), bool),
        "dropped": np.zeros((2, 2), bool),
        "attackers": np.zeros((2, 2), bool),
        "finite": True,
    } | changes
    judged = facts.pop("judged", None)
    stacked = {name: np.stack([np.asarray(value)] * rounds) for name, value in facts.items()}
    return RoundReport(**stacked, judged=None if judged is None else np.stack([np.float32(judged)] * rounds))


def evaluated(history: History, round_: int, accuracy: float) -> dict:
    """Adds an evaluation whose other metrics are zero."""
    numbers = Metrics(**dict.fromkeys(metrics(), 0.0) | {"accuracy": accuracy})
    return history.add_evaluation(round_, numbers, SENT, {"params": np.full(2, accuracy)})


def new(clients=4) -> History:
    return History(best_model={"params": np.zeros(2)}, clients=clients)


def test_a_record_holds_the_means_over_the_rounds_since_the_last_evaluation():
    history = new()
    history.add_rounds(reports(2), first=1)
    history.add_rounds(reports(labeled_loss=5.0, consistency_loss=0.5), first=3)
    record = evaluated(history, 3, 0.5)
    assert record["round"] == 3
    assert record["labeled_loss"] == pytest.approx(3.0)
    assert record["consistency_loss"] == 0.5  # of the one round that has it
    assert record["client_weights"] == {"0": 0.25, "2": 0.625, "3": 0.5}
    assert {**SENT, "seconds": 0.0}.items() <= record.items()
    assert history.pending == []
    record = evaluated(history, 4, 0.5)  # nothing happened since
    assert (record["labeled_loss"], record["client_weights"], record["broken_clients"]) == (None, {}, 0)


def test_a_record_names_broken_dropped_and_attacking_clients():
    history = new()
    history.add_rounds(
        reports(
            2,
            broken=[[True, False], [False, False]],
            dropped=[[False, True], [True, False]],
            attackers=[[False, False], [False, True]],
        ),
        first=1,
    )
    record = evaluated(history, 2, 0.5)
    assert (record["broken_clients"], record["broken_ids"]) == (2, [0])
    assert (record["dropped_clients"], record["attacker_weight"]) == (4, 0.5)


def test_a_large_federation_has_no_weights_of_single_clients():
    history = new(clients=MOST_LISTED + 1)
    history.add_rounds(reports(), first=1)
    assert evaluated(history, 1, 0.5)["client_weights"] == {}


def test_pseudo_labels_are_judged_over_all_rounds_since_the_last_evaluation():
    history = new()
    assert not PSEUDO_LABELS.keys() & evaluated(history, 0, 0.5).keys()  # no round, nothing to judge
    history.add_rounds(reports(2, judged=[[4, 2, 1], [3, 0, 0], [0, 0, 0]]), first=1)
    history.add_rounds(reports(judged=[[2, 1, 1], [1, 0, 0], [0, 0, 0]]), first=3)
    record = evaluated(history, 3, 0.5)
    assert (record["kept_share"], record["kept_accuracy"]) == (5 / 17, 3 / 5)
    assert record["kept_share_by_class"] == [5 / 10, 0, None]
    assert record["kept_accuracy_by_class"] == [3 / 5, None, None]
    history.add_rounds(reports(judged=np.zeros((3, 3))), first=4)  # none but labeled samples
    record = evaluated(history, 4, 0.5)
    assert (record["kept_share"], record["kept_accuracy_by_class"]) == (None, [None] * 3)


def test_a_method_without_pseudo_labels_has_no_word_of_them():
    history = new()
    history.add_rounds(reports(), first=1)
    assert not any(name.startswith("kept_") for name in evaluated(history, 1, 0.5))
    assert "pseudo_labels" not in summarise(history, confusion=np.eye(2, dtype=int), **FACTS)


def test_rounds_of_an_older_checkpoint_were_not_judged():
    history = new()
    history.add_rounds(reports(judged=[[9, 9, 9]]), first=1)
    del history.pending[0]["judged"]
    history.add_rounds(reports(judged=[[4, 2, 1]]), first=2)
    assert evaluated(history, 2, 0.5)["kept_share"] == 0.5


def test_a_summary_holds_the_pseudo_labels_of_the_last_five_evaluations():
    history = new()
    for round_ in range(1, 8):
        history.add_rounds(reports(judged=[[10, round_, 1]]), first=round_)
        evaluated(history, round_, 0.5)
    summary = summarise(history, confusion=np.eye(2, dtype=int), **FACTS)
    assert summary["pseudo_labels"]["kept_share"] == pytest.approx(0.5)
    assert summary["pseudo_labels"]["kept_accuracy"] == pytest.approx(np.mean([1 / n for n in range(3, 8)]))
    assert list(summary["final"]) == list(metrics())


def test_the_best_model_is_that_of_the_first_most_accurate_round_after_round_0():
    history = new()
    for round_, accuracy in [(0, 0.9), (1, 0.2), (2, 0.6), (3, 0.6), (4, 0.1)]:
        evaluated(history, round_, accuracy)
    assert history.best_model["params"].tolist() == [0.6, 0.6]
    assert [record["round"] for record in history.trained] == [1, 2, 3, 4]


def test_a_best_model_does_not_change_with_the_array_that_it_came_from():
    history, models = new(), {"params": np.ones(2)}
    history.add_evaluation(1, Metrics(*[0.5] * len(Metrics._fields)), SENT, models)
    models["params"][:] = 7
    assert history.best_model["params"].tolist() == [1, 1]


def test_a_history_survives_json_in_the_middle_of_its_rounds():
    whole, parts = new(), new()
    for history in (whole, parts):
        evaluated(history, 0, 1 / 3)
        history.seconds = 0.1
        history.add_rounds(reports(2, labeled_loss=1 / 3, judged=[[3, 2, 1]]), first=1)
    parts = History.from_json(json.loads(json.dumps(parts.to_json())), best_model=parts.best_model, clients=4)
    for history in (whole, parts):
        history.add_rounds(reports(judged=[[2**23, 2**23 - 1, 5]]), first=3)
        evaluated(history, 3, 0.7)
    assert parts.records[-1]["kept_share"] == (2 * 2 + 2**23 - 1) / (2 * 3 + 2**23)
    assert parts.to_json() == whole.to_json()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"distances": [[1, np.inf], [1, 1]]}, "clients whose model was not finite or infinitely far away: 2"),
        ({"broken": [[1, 0], [0, 1]]}, "clients whose model was not finite or infinitely far away: 0, 3"),
        ({}, "clients that took part: 0, 2, 3"),
    ],
)
def test_a_model_that_is_not_finite_is_reported_with_its_round_and_clients(changes, said):
    changes = {name: np.asarray(value, bool if name == "broken" else float) for name, value in changes.items()}
    facts = reports(3, **changes)._replace(finite=np.array([True, False, False]))
    for first, when in ((5, "round 6"), (-5, "a warm-up round")):
        with pytest.raises(DivergedError) as error:
            check_finite(facts, first=first)
        assert str(error.value) == f"the global model is no longer finite after {when}; the {said}"
    history = new()
    with pytest.raises(DivergedError, match="round 6"):
        history.add_rounds(facts, first=5)
    assert history.pending == []


def test_a_summary_tells_what_was_recorded_even_if_an_older_version_recorded_less():
    history = new()
    for round_, accuracy in enumerate((0.1, 0.2, 0.6, 0.4)):
        evaluated(history, round_, accuracy)
    for record in history.records:
        del record["f1"]
    for record in history.records[:3]:
        del record["recall"]
    history.records[3]["recall"] = 0.25
    summary = summarise(history, confusion=np.eye(2, dtype=int), **FACTS)
    assert summary["final"]["accuracy"] == pytest.approx(0.4)
    assert (summary["final"]["recall"], summary["final"]["f1"]) == (0.25, None)
    assert (summary["best"]["round"], summary["best"]["accuracy"], summary["best"]["recall"]) == (2, 0.6, None)
    assert (summary["rounds"], summary["models_up"], summary["confusion"]) == (3, 6, [[1, 0], [0, 1]])
    assert summary["device"].startswith("2 x ")
    assert summary["classes_without_test_samples"] == [1]
    json.dumps(summary)
