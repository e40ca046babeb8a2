"""A data set split over clients as a config says."""

import json

import numpy as np
import pytest

from rscfed_jax.config import Config, SettingError
from rscfed_jax.data import federation as federations
from rscfed_jax.data import partition
from rscfed_jax.data.federation import build_federation
from rscfed_jax.data.load import load_dataset


def test_a_federation_is_the_same_for_the_same_seed_and_another_for_another():
    one, same, other = (build_federation(Config(dataset="synthetic:train=400", seed=seed)) for seed in (1, 1, 2))
    assert all((a == b).all() for a, b in zip(one.samples, same.samples, strict=True))
    assert one.sizes.tolist() != other.sizes.tolist()


def test_a_train_fraction_keeps_a_part_of_every_client_and_the_same_labeled_ones():
    whole = build_federation(Config())
    part = build_federation(Config(train_fraction=0.1))
    np.testing.assert_array_equal(part.labeled, whole.labeled)
    np.testing.assert_allclose(part.sizes, whole.sizes * 0.1, atol=1)
    assert all(set(a) <= set(b) for a, b in zip(part.samples, whole.samples, strict=True))


@pytest.mark.parametrize("passed", [False, True])
def test_validation_tests_on_training_samples_that_no_client_holds(passed):
    dataset = load_dataset("fashion")
    federations = [
        build_federation(Config(validation=0.2, seed=seed), dataset=dataset if passed else None) for seed in (0, 1)
    ]
    for federation in federations:
        held_out = federation.dataset.held_out
        assert len(held_out) == 0.2 * 12_000
        assert sorted(np.concatenate([*federation.samples, held_out])) == list(range(12_000))
        np.testing.assert_array_equal(federation.dataset.test_images, dataset.train_images[held_out])
        np.testing.assert_array_equal(federation.dataset.test_labels, dataset.train_labels[held_out])
    np.testing.assert_array_equal(*(federation.dataset.held_out for federation in federations))


def test_validation_that_takes_all_of_a_client_is_refused():
    settings = {"dataset": "synthetic:train=40", "clients": 10, "min_client_size": 1, "subset_size": 1}
    with pytest.raises(SettingError, match=r"--validation 0\.9: would leave a client without samples"):
        build_federation(Config(validation=0.9, **settings))


def test_a_labeled_fraction_labels_a_part_of_every_client():
    federation = build_federation(Config(labeled_fraction=0.1))
    assert federation.labeled.all()
    shares = [visible.mean() for visible in federation.label_visible]
    np.testing.assert_allclose(shares, 0.1, atol=0.01)


def test_a_labeled_fraction_that_rounds_to_all_samples_is_refused_where_unlabeled_ones_are_needed():
    config = Config(method="semifl", clients=500, gamma="iid", labeled_fraction=0.98)
    with pytest.raises(
        SettingError, match=r"^--labeled-fraction 0.98: leaves no unlabeled samples, which --method semifl"
    ):
        build_federation(config)


def test_the_default_labeled_client_holds_every_class_of_fashion():
    federation = build_federation(Config())
    assert federation.labeled.sum() == 1
    assert (federation.class_counts[federation.labeled] > 0).all()
    assert federation.sizes.sum() == 12_000


def test_label_counts_leave_out_hidden_labels():
    federation = build_federation(Config(labeled_clients=2))
    np.testing.assert_array_equal(federation.label_counts, federation.class_counts * federation.labeled[:, None])
    part = build_federation(Config(labeled_fraction=0.1))
    assert part.label_counts.sum(axis=1).tolist() == part.to_json()["labels"]
    assert part.to_json()["labels"] == [int(visible.sum()) for visible in part.label_visible]


def test_of_very_many_clients_the_partition_file_holds_totals_and_a_checksum(monkeypatch):
    monkeypatch.setattr(federations, "MOST_LISTED", 49)
    config = Config(
        dataset="synthetic:train=300,test=20,classes=3,size=4",
        clients=50,
        gamma="iid",
        min_client_size=6,
        labeled_clients=5,
    )
    totals = build_federation(config).to_json()
    assert totals["holders"] == 50
    assert totals["class_totals"] == [100, 100, 100]
    assert (totals["labeled_holders"], totals["labels_total"]) == (5, 30)
    assert len(json.dumps(totals)) < 500
    assert build_federation(config).to_json() == totals
    for changes in ({"labeled_choice": "random"}, {"seed": 1}):
        assert build_federation(config.replace(**changes)).to_json()["checksum"] != totals["checksum"]


@pytest.mark.parametrize("changes", [{"labeled_fraction": 0.3}, {"labeled_clients": 5, "train_fraction": 0.5}])
def test_very_many_clients_are_drawn_from_at_once(monkeypatch, changes):
    monkeypatch.setattr(partition, "MOST_ONE_BY_ONE", 9)
    config = Config(
        dataset="synthetic:train=100,test=20,classes=2,size=4", clients=10, gamma="iid", min_client_size=9, **changes
    )
    found, again = build_federation(config), build_federation(config)
    kept = round(10 * changes.get("train_fraction", 1))
    assert found.sizes.tolist() == [kept] * 10
    assert found.labels.tolist() == ([3] * 10 if "labeled_fraction" in changes else (found.labeled * kept).tolist())
    assert len(np.unique(np.concatenate(found.samples))) == 10 * kept
    for one, other in zip(found.label_visible, again.label_visible, strict=True):
        np.testing.assert_array_equal(one, other)
