"""Runs: the public API, resuming to the bit, settings that change the program."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import rscfed_jax as rj
from rscfed_jax.config import METHODS
from tests.conftest import assert_trees_equal

SETTINGS = {
    "dataset": "synthetic:train=120,test=40,classes=3,size=16",
    "image_size": 16,
    "clients": 4,
    "min_client_size": 5,
    "subsets": 2,
    "subset_size": 2,
    "batch_size": 16,
    "rounds": 2,
    "devices": 1,
}


def untimed(records):
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


def test_the_public_names_are_there():
    for name in rj.__all__:
        assert getattr(rj, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = rj.nothing


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_resumed_run_is_identical_to_the_bit(tmp_path, devices):
    settings = SETTINGS | {"devices": devices}
    whole = rj.train(rj.Config(**settings | {"rounds": 4}), out=tmp_path / "whole")
    rj.train(rj.Config(**settings), out=tmp_path / "parts")
    # A killed run may have gone on beyond its checkpoint, and torn its last line.
    with (tmp_path / "parts" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"round": 3, "accuracy": 0, "seconds": 0}) + "\n" + '{"round": 4, "accur')
    parts = rj.train(rj.Config(**settings | {"rounds": 4}), out=tmp_path / "parts", resume=True)
    assert_trees_equal(parts.model, whole.model)
    assert untimed(parts.metrics) == untimed(whole.metrics)
    lines = [
        untimed(json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        for name in ("whole", "parts")
    ]
    assert lines[0] == lines[1]
    assert parts.summary["final"] == whole.summary["final"]
    assert parts.summary["best"] == whole.summary["best"]


def test_resume_without_a_checkpoint_starts_at_round_0(tmp_path):
    result = rj.train(rj.Config(**SETTINGS), out=tmp_path / "new", resume=True)
    assert [record["round"] for record in result.metrics] == [0, 1, 2]


def test_a_run_returns_its_metrics_and_a_model_that_predicts():
    config, told = rj.Config(**SETTINGS | {"method": "fedavg", "rounds": 12, "lr_labeled": 0.05}), []
    result = rj.train(config, on_record=told.append)
    assert told == result.metrics
    dataset = rj.build_federation(result.config).dataset
    probabilities = result.predict(dataset.test_images)
    accuracy = (probabilities.argmax(axis=1) == dataset.test_labels).mean()
    assert accuracy == pytest.approx(result.metrics[-1]["accuracy"], abs=1e-6)
    assert accuracy > 0.6
    several_batches = result.predict(np.tile(dataset.test_images, (7, 1, 1, 1)))
    np.testing.assert_allclose(several_batches, np.tile(probabilities, (7, 1)), rtol=1e-5, atol=1e-6)
    assert result.predict(dataset.test_images[:0]).shape == (0, 3)
    assert int(result.simulation.state.round) == 12
    assert_trees_equal(result.simulation.state.model, result.model)
    assert result.confusion.sum() == 40
    assert np.trace(result.confusion) == round(accuracy * 40)


def test_a_federation_without_unlabeled_samples_has_no_teacher():
    for settings in ({"method": "fedavg"}, {"labeled_clients": 4}):
        config = rj.Config(**SETTINGS | settings)
        simulation = rj.build_simulation(config, rj.build_federation(config))
        assert simulation.state.clients.teacher is None
    config = rj.Config(**SETTINGS)
    assert rj.build_simulation(config, rj.build_federation(config)).state.clients.teacher is not None


@pytest.mark.parametrize("method", METHODS)
def test_methods_of_one_seed_share_partition_and_initial_model(method):
    config = rj.Config(**SETTINGS | {"method": method})
    first = rj.Config(**SETTINGS)
    one, other = (rj.build_simulation(c, rj.build_federation(c)) for c in (config, first))
    assert_trees_equal(one.state.model, other.state.model)
    assert_trees_equal(one.data, other.data)


@pytest.mark.parametrize(
    "settings",
    [
        {"preset": "published"},
        {"method": "fed_consist", "labeled_fraction": 0.2, "warmup_rounds": 1},
        {"method": "sso", "dtype": "bfloat16", "chunk": 2, "devices": 2, "repeat": "share", "local_epochs": 2},
    ],
    ids=["published", "partially labeled", "bfloat16 in chunks on two devices"],
)
def test_runs_of_every_kind(settings):
    result = rj.train(rj.Config(**SETTINGS | settings))
    assert [record["round"] for record in result.metrics] == [0, 1, 2]
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in result.model["params"]["l3"].values())
    assert result.metrics[-1]["consistency_loss"] > 0


def test_a_run_starts_from_the_model_of_another(tmp_path):
    first = rj.train(rj.Config(**SETTINGS), out=tmp_path / "first")
    config = rj.Config(**SETTINGS | {"init_from": str(tmp_path / "first"), "rounds": 1, "devices": 2})
    second = rj.train(config)
    assert second.metrics[0]["accuracy"] == first.metrics[-1]["accuracy"]
    other = rj.Config(**SETTINGS | {"init_from": str(tmp_path / "first"), "image_size": 20})
    with pytest.raises(rj.SettingError, match=r"--init-from .*other parameters"):
        rj.train(other, out=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_simulation_starts_from_a_model_too(tmp_path):
    config = rj.Config(**SETTINGS | {"init_from": str(tmp_path / "nowhere")})
    with pytest.raises(rj.SettingError, match=r"--init-from .*nowhere: is not a run directory"):
        rj.build_simulation(config, rj.build_federation(config))


def test_labels_of_any_whole_type_are_hidden_and_wrong_data_are_refused():
    config = rj.Config(**SETTINGS)
    dataset = rj.build_federation(config).dataset
    small = dataset._replace(train_labels=dataset.train_labels.astype(np.uint8))
    hidden = rj.build_simulation(config, rj.build_federation(config, dataset=small)).data.labels
    assert set(np.unique(hidden)) == {-1, 0, 1, 2}
    with pytest.raises(rj.SettingError, match="--dataset of your own: test_images must be uint8, not float64"):
        rj.build_federation(config, dataset=dataset._replace(test_images=dataset.test_images / 255))
    with pytest.raises(rj.SettingError, match="train_labels hold 2, but classes is 2"):
        rj.build_federation(config, dataset=dataset._replace(classes=2))


def test_a_federation_has_as_many_clients_as_the_config():
    federation = rj.build_federation(rj.Config(**SETTINGS | {"clients": 5}))
    with pytest.raises(rj.SettingError, match="--clients 4: must be that of the federation, which has 5"):
        rj.train(rj.Config(**SETTINGS), federation=federation)


def test_a_class_without_test_samples_is_said(tmp_path, capsys):
    images = np.random.default_rng(0).integers(0, 256, (80, 16, 16, 3), dtype=np.uint8)
    labels = np.arange(80) % 3
    arrays = {
        "train_images": images,
        "train_labels": labels,
        "test_images": images[:20],
        "test_labels": labels[:20] % 2,
    }
    np.savez(tmp_path / "few.npz", **arrays)
    config = rj.Config(**SETTINGS | {"dataset": f"npz:{tmp_path}/few.npz", "method": "fedavg", "rounds": 1})
    result = rj.train(config, progress=True)
    assert result.summary["classes_without_test_samples"] == [2]
    assert "no sample of class 2" in " ".join(capsys.readouterr().err.split())
    assert 0 <= result.metrics[-1]["auc"] <= 1
