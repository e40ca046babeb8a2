"""A trained model, wherever it lies."""

import chex
import numpy as np
import pytest

from rscfed_jax.config import Config, SettingError
from rscfed_jax.runner.snapshot import flat
from rscfed_jax.runner.stored_model import export_model, load_model, save_model
from rscfed_jax.storage.checkpoint import Checkpoints
from rscfed_jax.storage.run_directory import RunDirectory

MODEL = {"params": {"l1": {"kernel": np.arange(6, dtype=np.float32).reshape(2, 3), "bias": np.ones(3, np.float32)}}}
LATER = {"params": {"l1": {"kernel": np.zeros((2, 3), np.float32), "bias": np.zeros(3, np.float32)}}}


@pytest.fixture
def out(tmp_path):
    """A run directory with the models of two rounds, the first of them in the warm-up."""
    directory = RunDirectory(tmp_path / "run")
    with directory.open(Config(), {}, resume=False), Checkpoints(directory.checkpoints) as checkpoints:
        for round_, model in ((-2, MODEL), (7, LATER)):
            checkpoints.save(round_, {"model": flat(model)}, accuracy={})
    return tmp_path / "run"


def test_the_newest_model_of_a_run_or_that_of_a_checkpoint_is_read(out):
    for path, model, round_ in ((out, LATER, 7), (out / "checkpoints" / "-2", MODEL, -2)):
        found, found_round = load_model(path, MODEL, setting="PATH")
        chex.assert_trees_all_equal(found, model)
        assert found_round == round_


def test_a_damaged_model_is_passed_over_and_named(out, capsys):
    (out / "checkpoints" / "7" / "model" / "arrays.npz").write_bytes(b"")
    assert load_model(out, MODEL, setting="PATH")[1] == -2
    assert "checkpoints/7 is damaged and skipped" in capsys.readouterr().err
    with pytest.raises(SettingError, match=r"PATH .*/checkpoints/7: holds no valid checkpoint"):
        load_model(out / "checkpoints" / "7", MODEL, setting="PATH")


def test_a_model_travels_through_a_file(out, tmp_path):
    assert export_model(out / "checkpoints" / "-2", tmp_path / "model.safetensors") == -2
    found, round_ = load_model(tmp_path / "model.safetensors", MODEL, setting="PATH")
    chex.assert_trees_all_equal(found, MODEL)
    assert round_ is None
    save_model(tmp_path / "model.safetensors", LATER)
    chex.assert_trees_all_equal(load_model(tmp_path / "model.safetensors", MODEL, setting="PATH")[0], LATER)


def test_a_model_takes_the_types_of_the_network(out):
    half = {"params": {"l1": {name: leaf.astype(np.float16) for name, leaf in MODEL["params"]["l1"].items()}}}
    assert load_model(out, half, setting="PATH")[0]["params"]["l1"]["bias"].dtype == np.float16


def test_a_model_of_another_network_is_refused(out, tmp_path):
    other = {"params": {"l1": {"kernel": np.zeros((2, 4)), "bias": np.zeros(4)}}}
    with pytest.raises(
        SettingError, match=r"--init-from .*/run: its model has different parameters than these settings"
    ):
        load_model(out, other, setting="init_from")
    save_model(tmp_path / "model.pt.safetensors", MODEL)
    with pytest.raises(SettingError, match=r"PATH .*: tensor l1.bias has shape \(3,\), not \(4,\)"):
        load_model(tmp_path / "model.pt.safetensors", other, setting="PATH")


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(SettingError, match=r"PATH .*: is not a run directory with config.json and checkpoints"):
        load_model(tmp_path, MODEL, setting="PATH")
