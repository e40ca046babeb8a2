"""A round in which the server holds the labels: who trains, what travels, what faults leave alone."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rscfed_jax.config import Config
from rscfed_jax.core.faults import Faults
from rscfed_jax.core.method import Finish, Method
from rscfed_jax.core.repeat import REPEATS
from rscfed_jax.core.round import one_round as whole_round
from rscfed_jax.data.federation import build_federation
from rscfed_jax.methods.registry import METHODS, method_of, with_settings
from rscfed_jax.runner.build import build_simulation
from tests.helpers import SMALL, Tiny, once, server_federation

AT_SERVER = {"labels_at": "server", "clients": 4, "subsets": 2, "subset_size": 2}


@pytest.fixture(scope="module")
def tiny():
    return Tiny(server_federation())


def one_round(tiny, method, *, repeat="retrain", faults=None, **hyper):
    algorithm = tiny.algorithm(method=method, repeat=REPEATS[repeat], faults=faults or Faults(), server_id=4)
    numbers = tiny.hyper._replace(**{name: jnp.float32(value) for name, value in hyper.items()})
    return once(algorithm, tiny.state(algorithm), tiny.data, numbers)


def has_momentum(state, holder):
    """Whether a holder has trained."""
    return any(bool(jnp.any(leaf[holder] != 0)) for leaf in jax.tree.leaves(state.clients.optimizer))


@pytest.mark.parametrize(("name", "repeat"), [("rscfed", "retrain"), ("rscfed", "share"), ("fed_consist", "retrain")])
def test_the_server_trains_beside_the_clients_and_its_models_do_not_travel(tiny, name, repeat):
    state, report = one_round(tiny, method_of(Config(**AT_SERVER, method=name)), repeat=repeat)
    subsets = np.asarray(report.subsets)
    assert subsets.shape == ((2, 3) if name == "rscfed" else (1, 5))
    assert (subsets[:, -1] == 4).all()
    clients = subsets[:, :-1]
    assert int(state.models_down) == len(np.unique(clients))
    assert int(state.models_up) == (len(np.unique(clients)) if repeat == "share" else clients.size)
    assert np.isfinite([report.labeled_loss, report.consistency_loss]).all()
    # The server's labels have half of the weight before distances count.
    assert (np.asarray(report.weights)[:, -1] > 0).all()
    assert has_momentum(state, 4)  # kept between rounds, as a client keeps its own


def test_the_server_alone_is_the_lower_bound_and_sends_nothing(tiny):
    state, report = one_round(tiny, method_of(Config(**AT_SERVER, method="fedavg")))
    assert report.subsets.tolist() == [[4]]
    assert (int(state.models_down), int(state.models_up)) == (0, 0)


@pytest.mark.parametrize("sampling", ["subsets", pytest.param("all", marks=pytest.mark.slow), "unlabeled"])
def test_in_a_method_with_a_second_phase_the_server_trains_after_the_mean(tiny, sampling):
    config = Config(**AT_SERVER, sampling=sampling)
    method = with_settings(Method(name="mine", finish=Finish()), config)
    state, report = one_round(tiny, method)
    assert (np.asarray(report.subsets) != 4).all()
    assert int(state.models_up) == report.subsets.size
    without, _ = one_round(tiny, with_settings(Method(name="mine"), config.replace(sampling="unlabeled")))
    bias = [each.model["params"]["l3"]["bias"] for each in (state, without)]
    assert float(jnp.abs(bias[0] - bias[1]).max()) > 1e-5
    assert has_momentum(state, 4)


def test_where_no_client_answers_the_server_trains_alone(tiny):
    faults = Faults.of(Config(**AT_SERVER, drop_rate=0.5))
    state, report = one_round(tiny, method_of(Config(**AT_SERVER)), faults=faults, drop_rate=1)
    assert report.dropped.tolist() == [[True, True, False]] * 2
    assert report.weights.tolist() == [[0, 0, 1]] * 2
    assert int(state.models_up) == 0


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_round_with_labels_at_the_server(name):
    config = Config(**SMALL, labels_at="server", server_labels=5, method=name)
    simulation = build_simulation(config, build_federation(config))
    round_ = partial(whole_round, simulation.algorithm)
    state, _ = jax.eval_shape(round_, simulation.state, simulation.data, simulation.hyper)
    assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, simulation.state)
