"""What a run returns."""

import dataclasses

import chex
import jax
import numpy as np
import pytest

from rscfed_jax.config import Config
from rscfed_jax.data.federation import build_federation
from rscfed_jax.runner.build import build_cells
from rscfed_jax.runner.result import Result
from tests.helpers import SMALL

CONFIG = Config(**SMALL)


@pytest.fixture(scope="module")
def result():
    """The second of two experiments that ran together, before their first round."""
    configs = [CONFIG, CONFIG.replace(seed=4)]
    cells = build_cells(configs, [build_federation(config) for config in configs])
    model = jax.tree.map(lambda leaf: leaf[1], cells.state.model)
    return Result(configs[1], [], {}, model, model, np.zeros((3, 3)), cells, 1)


def test_predictions_are_probabilities_and_do_not_depend_on_the_batch(result):
    images = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)
    probabilities = result.predict(images)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    assert probabilities.std(axis=0).min() > 0
    many = np.tile(images, (30, 1, 1, 1))  # more than a batch
    np.testing.assert_allclose(result.predict(many), np.tile(probabilities, (30, 1)), rtol=1e-5, atol=1e-6)
    assert result.predict(images[:0]).shape == (0, 3)


def test_images_of_any_size_and_of_one_channel_are_taken(result):
    grey = np.random.default_rng(0).integers(0, 256, (5, 16, 16, 1), dtype=np.uint8)
    np.testing.assert_array_equal(result.predict(grey), result.predict(np.repeat(grey, 3, axis=3)))
    assert result.predict(np.zeros((5, 40, 40, 3), np.uint8)).shape == (5, 3)


@pytest.mark.parametrize("images", [np.zeros((5, 16, 16, 3)), np.zeros((5, 16, 16), np.uint8)])
def test_other_arrays_are_refused(result, images):
    with pytest.raises(ValueError, match="images must be uint8 of shape B,H,W,C, not"):
        result.predict(images)


def test_the_simulation_is_that_of_the_experiment_alone(result):
    simulation = result.simulation
    assert simulation.state.round.shape == ()
    chex.assert_trees_all_equal(simulation.state.model, result.model)
    assert simulation.data.sizes.shape == (10,)


def test_a_population_on_the_host_cannot_go_on_from_what_the_devices_hold(result):
    elsewhere = dataclasses.replace(
        result, config=CONFIG.replace(population="host"), cells=result.cells._replace(stage=object())
    )
    with pytest.raises(ValueError, match=r"--population host: .* train with population='device'"):
        _ = elsewhere.simulation
