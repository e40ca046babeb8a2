"""The verbs of Python: what a run returns and writes, and how it knows its method and network again."""

import json
import shutil

import chex
import jax.numpy as jnp
import numpy as np
import pytest

import rscfed_jax as rj
from rscfed_jax.runner import compiled
from tests.helpers import SMALL, TinyNetwork, records_of, untimed

CONFIG = rj.Config(**SMALL | {"rounds": 8})


def test_the_public_names_are_there():
    for name in rj.__all__:
        assert getattr(rj, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = rj.nothing


def test_a_run_returns_its_metrics_and_a_model_that_predicts():
    told = []
    result = rj.train(CONFIG.replace(rounds=12, lr_labeled=0.1), on_record=told.append)
    assert told == result.metrics
    dataset = rj.build_federation(result.config).dataset
    probabilities = result.predict(dataset.test_images)
    accuracy = (probabilities.argmax(axis=1) == dataset.test_labels).mean()
    assert accuracy == pytest.approx(result.metrics[-1]["accuracy"], abs=1e-6)
    assert accuracy > 0.6
    assert int(result.simulation.state.round) == 12
    chex.assert_trees_all_equal(result.simulation.state.model, result.model)
    assert result.confusion.sum() == 40
    assert np.trace(result.confusion) == round(accuracy * 40)


def test_a_run_resumes_to_the_bit_on_two_devices_and_up_to_rounding_with_another_number(tmp_path):
    two = CONFIG.replace(devices=2)
    whole = rj.train(two, out=tmp_path / "whole")
    rj.train(two.replace(rounds=4), out=tmp_path / "parts")
    shutil.copytree(tmp_path / "parts", tmp_path / "elsewhere")
    # A killed run may have gone on beyond its checkpoint, and torn its last line.
    with (tmp_path / "parts" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"round": 5, "accuracy": 0, "seconds": 0}) + "\n" + '{"round": 6, "accur')
    parts = rj.train(two, out=tmp_path / "parts", resume=True)
    chex.assert_trees_all_equal(parts.model, whole.model)
    assert untimed(parts.metrics) == untimed(whole.metrics)
    assert records_of(tmp_path / "parts") == records_of(tmp_path / "whole")
    for part in ("final", "best", "confusion"):
        assert parts.summary[part] == whole.summary[part]
    elsewhere = rj.train(CONFIG.replace(data_dir="elsewhere"), out=tmp_path / "elsewhere", resume=True)
    chex.assert_trees_all_close(elsewhere.model, whole.model, atol=1e-4)


def test_resume_without_a_checkpoint_starts_at_round_0(tmp_path):
    result = rj.train(CONFIG.replace(rounds=4), out=tmp_path / "new", resume=True)
    assert [record["round"] for record in result.metrics] == [0, 4]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"preset": "published", "warmup_rounds": 1},
        {"method": "fed_consist", "labeled_fraction": 0.2, "warmup_rounds": 1},
        {"method": "sso", "dtype": "bfloat16", "chunk": 2, "devices": 2, "repeat": "share", "local_epochs": 2},
    ],
    ids=["published", "partially labeled", "bfloat16 in chunks on two devices"],
)
def test_runs_of_every_kind(settings):
    result = rj.train(rj.Config(**SMALL | {"model": "simple-cnn", "rounds": 2} | settings))
    assert [record["round"] for record in result.metrics] == [0, 2]
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in result.model["params"]["l3"].values())
    assert result.metrics[-1]["consistency_loss"] > 0


def test_a_run_starts_from_the_model_of_another(tmp_path):
    first = rj.train(CONFIG.replace(rounds=4), out=tmp_path / "first")
    start = {"init_from": str(tmp_path / "first"), "rounds": 4}
    assert rj.train(CONFIG.replace(**start)).metrics[0]["accuracy"] == first.metrics[-1]["accuracy"]
    with pytest.raises(rj.SettingError, match=r"--init-from .*different parameters"):
        rj.train(CONFIG.replace(**start, image_size=20), out=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_class_without_test_samples_is_said(capsys):
    federation = rj.build_federation(CONFIG)
    dataset = federation.dataset._replace(test_labels=federation.dataset.test_labels % 2)
    result = rj.train(CONFIG.replace(rounds=4), federation=federation._replace(dataset=dataset), progress=True)
    assert result.summary["classes_without_test_samples"] == [2]
    assert "no sample of class 2" in " ".join(capsys.readouterr().err.split())
    assert 0 <= result.metrics[-1]["auc"] <= 1


MINE = rj.Method(name="mine", sample=rj.RandomSubsets(2, 3), teacher="none")
OWN = {"method": MINE, "network": TinyNetwork(classes=3)}


@pytest.fixture(scope="module")
def own_run(tmp_path_factory):
    """A run of a method and a network that were given as objects."""
    out = tmp_path_factory.mktemp("own") / "run"
    return rj.train(CONFIG, out=out, **OWN), out


def test_a_run_of_objects_bears_their_names(own_run):
    result, out = own_run
    stored = json.loads((out / "config.json").read_text())
    assert (stored["method"], stored["method_hash"]) == ("mine", "none")
    assert (stored["model"], stored["model_hash"]) == ("TinyNetwork(dtype=float32, classes=3)", "none")
    assert result.config.to_dict() == stored


def test_a_run_of_objects_resumes_to_the_bit_if_they_are_given_again(tmp_path, own_run):
    out = tmp_path / "run"
    rj.train(CONFIG.replace(rounds=4), out=out, **OWN)
    before = (out / "config.json").read_bytes()
    for given, said in [
        ({}, r"the run there has the method mine, given as an object: give it again \(method=\)"),
        ({"network": OWN["network"]}, "has the method mine"),
        ({"method": MINE}, r"has the model TinyNetwork\(.*, given as an object: give it again \(network=\)"),
    ]:
        with pytest.raises(rj.SettingError, match=said) as error:
            rj.train(CONFIG, out=out, resume=True, **given)
        assert "\n" not in str(error.value)
    assert (out / "config.json").read_bytes() == before
    result = rj.train(CONFIG, out=out, resume=True, **OWN)
    chex.assert_trees_all_equal(result.model, own_run[0].model)
    assert records_of(out) == records_of(own_run[1])


@pytest.mark.parametrize("name", ["", "rscfed", "a/b"])
def test_an_object_needs_a_name_of_its_own(tmp_path, name):
    method = rj.Method(name=name, sample=rj.AllClients())
    with pytest.raises(rj.SettingError, match=f"--method '{name}': must have a name of its own, of letters"):
        rj.train(CONFIG, out=tmp_path / "run", method=method)
    assert not (tmp_path / "run").exists()


def test_an_object_that_says_neither_who_takes_part_nor_has_a_file_is_refused(tmp_path):
    with pytest.raises(rj.SettingError, match=r"--method mine: must say who takes part: give sample="):
        rj.train(CONFIG, out=tmp_path / "run", method=rj.Method(name="mine"))
    assert not (tmp_path / "run").exists()


def test_a_built_in_method_given_as_an_object_is_the_built_in(tmp_path):
    rj.train(CONFIG.replace(rounds=4), out=tmp_path / "by name")
    known = set(compiled._COMPILED)
    config = CONFIG.replace(rounds=4)
    rj.train(config, out=tmp_path / "object", method=rj.METHODS["rscfed"](config))
    assert set(compiled._COMPILED) == known
    stored = json.loads((tmp_path / "object" / "config.json").read_text())
    assert (stored["method"], stored["method_hash"]) == ("rscfed", None)
    assert records_of(tmp_path / "object") == records_of(tmp_path / "by name")


def test_a_run_of_objects_is_evaluated_with_its_network(own_run):
    result, out = own_run
    found, round_ = rj.evaluate_run(out, CONFIG, network=OWN["network"])
    assert round_ == 8
    assert float(found.accuracy) == pytest.approx(result.metrics[-1]["accuracy"])
    with pytest.raises(rj.SettingError, match=r"PATH .*: its model has different parameters"):
        rj.evaluate_run(out, CONFIG)


def test_a_stored_model_predicts_what_the_trained_one_does(tmp_path, own_run):
    result, out = own_run
    images = np.random.default_rng(0).integers(0, 256, (7, 20, 20, 3), dtype=np.uint8)
    expected = result.predict(images)
    for path in (out, out / "checkpoints" / "8"):
        classifier = rj.load_classifier(path, network=OWN["network"])
        np.testing.assert_array_equal(classifier.predict(images), expected)
    for path, said in [
        (out, "is not built in: give the file it came from, or network= in Python"),
        (tmp_path, "is not a run directory"),
        (tmp_path / "m.safetensors", "is a model file, which needs the config that it was trained with"),
    ]:
        with pytest.raises(rj.SettingError, match=said):
            rj.load_classifier(path)


def test_the_report_does_not_take_a_method_of_ones_own_for_a_seed_of_another(tmp_path, own_run):
    for seed, hash_ in ((0, "none"), (1, None), (2, "0123456789abcdef")):
        out = shutil.copytree(own_run[1], tmp_path / f"run{seed}")
        stored = json.loads((out / "config.json").read_text())
        stored |= {"method": "rscfed", "method_hash": hash_, "seed": seed}
        (out / "config.json").write_text(json.dumps(stored))
    _, report = rj.write_report(tmp_path, format="md")
    assert [len(line.runs) for line in report.lines] == [1, 1, 1]
    assert len({line.name for line in report.lines}) == 3


def test_a_run_on_data_of_ones_own_needs_its_config_to_classify(tmp_path):
    federation = rj.build_federation(CONFIG)
    dataset = federation.dataset._replace(test_labels=np.sort(federation.dataset.test_labels) % 2)
    rj.train(CONFIG.replace(rounds=1), out=tmp_path, federation=federation._replace(dataset=dataset))
    with pytest.raises(rj.SettingError, match="the run has different test samples than synthetic:"):
        rj.load_classifier(tmp_path)
    assert rj.load_classifier(tmp_path, CONFIG).predict(dataset.test_images[:2]).shape == (2, 3)
