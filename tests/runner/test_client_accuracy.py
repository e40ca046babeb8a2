"""The accuracy of a client on its own class mixture."""

import json

import numpy as np
import pytest

from rscfed_jax.config import Config
from rscfed_jax.data import ragged
from rscfed_jax.data.federation import build_federation
from rscfed_jax.runner import client_accuracy
from rscfed_jax.runner.client_accuracy import Mixtures, accuracy_by_client, client_accuracies
from rscfed_jax.storage.records import MOST_LISTED

CONFUSION = np.array([[8, 2, 0], [5, 5, 0], [0, 0, 0]])  # recalls 0.8 and 0.5; class 2 has no test samples


def test_it_is_the_recall_of_each_class_weighed_by_the_clients_share_of_it():
    counts = np.array([[10, 0, 0], [0, 7, 0], [30, 10, 0]])
    assert accuracy_by_client(CONFUSION, counts) == pytest.approx([0.8, 0.5, 0.75 * 0.8 + 0.25 * 0.5])


def test_it_is_the_accuracy_where_the_client_has_the_mixture_of_the_test_set():
    rng = np.random.default_rng(0)
    confusion = rng.integers(1, 50, (5, 5))
    counts = 3 * confusion.sum(axis=1, keepdims=True).T
    assert accuracy_by_client(confusion, counts) == pytest.approx([np.trace(confusion) / confusion.sum()])


def test_classes_that_are_not_tested_are_no_part_of_the_mixture():
    counts = np.array([[10, 0, 90], [0, 0, 5], [0, 0, 0]])
    record = client_accuracies(CONFUSION, Mixtures(counts))
    assert record == {"client_accuracy": [0.8, None, None], "client_accuracy_mean": 0.8, "client_accuracy_min": 0.8}
    json.dumps(record, allow_nan=False)
    assert client_accuracies(CONFUSION, Mixtures(counts[1:]))["client_accuracy_mean"] is None


@pytest.mark.parametrize("clients", [MOST_LISTED, MOST_LISTED + 1])
def test_a_large_federation_tells_mean_and_minimum_alone(clients):
    counts = np.tile([1, 1, 0], (clients, 1))
    counts[0] = [0, 1, 0]
    record = client_accuracies(CONFUSION, Mixtures(counts))
    assert record["client_accuracy_min"] == 0.5
    assert record["client_accuracy_mean"] == pytest.approx(0.65 - 0.15 / clients)
    assert ("client_accuracy" in record) == (clients == MOST_LISTED)


def test_of_very_many_clients_each_mixture_is_counted_once(monkeypatch):
    config = Config(dataset="synthetic:train=300,test=10,classes=3,size=4", clients=100, gamma="iid", min_client_size=3)
    federation = build_federation(config)
    one_by_one = client_accuracies(CONFUSION, Mixtures.of(federation, 100))
    monkeypatch.setattr(client_accuracy, "MOST_ALONE", 99)
    monkeypatch.setattr(ragged, "BLOCK", 70)
    mixtures = Mixtures.of(federation, 100)
    assert len(mixtures.class_counts) <= 10  # ways to divide three samples over three classes
    together = client_accuracies(CONFUSION, mixtures)
    assert together["client_accuracy_mean"] == pytest.approx(one_by_one["client_accuracy_mean"])
    assert together["client_accuracy_min"] == one_by_one["client_accuracy_min"]
