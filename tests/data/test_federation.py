"""A data set split over clients as a config says."""

import numpy as np
import pytest

from rscfed_jax.config import Config, SettingError
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
