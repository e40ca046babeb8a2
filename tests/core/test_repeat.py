"""What becomes of a client that several subsets have drawn."""

import jax.numpy as jnp
import numpy as np
import pytest

from rscfed_jax.core.method import Method
from rscfed_jax.core.repeat import REPEATS, retrain, sequential, share
from rscfed_jax.core.schedule import NOBODY
from tests.helpers import FixedSubsets, Tiny, once

SUBSETS = ((0, 1, 3), (3, 4, 2))  # client 3 is in both


def test_retraining_is_one_wave_of_all_slots():
    passes = retrain(jnp.array(SUBSETS), 5)
    assert passes.rows.tolist() == [[0, 1, 3, 3, 4, 2]]
    assert passes.subsets.tolist() == [[0, 0, 0, 1, 1, 1]]
    assert passes.places is None


def test_sequential_subsets_are_waves():
    passes = sequential(jnp.array(SUBSETS), 5)
    assert passes.rows.tolist() == [[0, 1, 3], [3, 4, 2]]
    assert passes.subsets.tolist() == [[0, 0, 0], [1, 1, 1]]
    assert passes.places is None


@pytest.mark.parametrize("population", [5, 100])
def test_sharing_trains_each_client_once_and_says_which_slot_serves_whom(population):
    passes = share(jnp.array(SUBSETS), population)
    assert passes.rows.tolist() == [[0, 1, 2, 3, 4] + [NOBODY] * (population == 100)]
    np.testing.assert_array_equal(passes.rows[0][passes.places], SUBSETS)
    assert not passes.subsets.any()


@pytest.fixture(scope="module")
def rounds():
    """A round of each strategy, from the same state."""
    tiny, done = Tiny(), {}
    for name, repeat in REPEATS.items():
        algorithm = tiny.algorithm(method=Method(sample=FixedSubsets(SUBSETS)), repeat=repeat)
        done[name] = once(algorithm, tiny.state(algorithm), tiny.data, tiny.hyper)
    return done


@pytest.mark.parametrize(("name", "steps", "up"), [("retrain", 4, 6), ("sequential", 8, 6), ("share", 4, 5)])
def test_a_client_in_two_subsets_is_kept_once_moved_on_or_trained_once(rounds, name, steps, up):
    state, _ = rounds[name]
    assert int(state.clients.step[3]) == steps  # its 25 samples are four batches of eight
    assert (int(state.models_down), int(state.models_up)) == (5, up)


def test_the_first_subset_does_not_notice_how_the_second_is_trained(rounds):
    distances = {name: report.distances for name, (_, report) in rounds.items()}
    np.testing.assert_allclose(distances["retrain"][0], distances["sequential"][0], rtol=1e-5)
    assert float(jnp.abs(distances["retrain"][1] - distances["sequential"][1]).max()) > 1e-4
