"""From settings to the parts of a program: names are resolved to functions here, once."""

import dataclasses
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from rscfed_jax.clients import ClientAxis
from rscfed_jax.config import Config, Hyper
from rscfed_jax.data.federation import Federation
from rscfed_jax.data.table import FederatedData, TestData, to_device
from rscfed_jax.faults import NO_FAULTS, Faults
from rscfed_jax.local.training import LocalTraining
from rscfed_jax.methods import METHODS
from rscfed_jax.methods.base import Method, by_data_amount
from rscfed_jax.models import MODELS
from rscfed_jax.repeat import REPEATS
from rscfed_jax.rounds import Algorithm, State, init_state
from rscfed_jax.sampling import LabeledClients


class Simulation(NamedTuple):
    """All that a run needs, on the device."""

    algorithm: Algorithm
    warmup: Algorithm  # the rounds on the labeled clients alone
    state: State
    data: FederatedData
    test: TestData
    hyper: Hyper


def make_network(config: Config, classes: int) -> nn.Module:
    """The network of every client."""
    more = {"stem": config.stem} if config.model == "resnet18" else {}
    return MODELS[config.model](classes, conv=config.conv, dtype=jnp.dtype(config.dtype), **more)


def make_algorithms(
    config: Config, network: nn.Module, method: Method, *, with_teacher: bool
) -> tuple[Algorithm, Algorithm]:
    """The static part of the config's rounds by `method`, and of its warm-up rounds."""
    axis = ClientAxis.create(config.chunk, config.devices)

    def algorithm(method: Method, faults: Faults, *, with_teacher: bool) -> Algorithm:
        local = LocalTraining(
            network=network,
            image_size=config.image_size,
            batch_size=config.batch_size,
            epochs=config.local_epochs,
            with_teacher=with_teacher,
            objective=method.objective,
            two_views=method.two_views,
        )
        return Algorithm(method, local, REPEATS[config.repeat], axis, faults)

    on_labeled = dataclasses.replace(method, sample=LabeledClients(), aggregate=by_data_amount)
    # The warm-up is before the experiment: nothing goes wrong in it.
    main = algorithm(method, Faults.of(config), with_teacher=with_teacher)
    return main, algorithm(on_labeled, NO_FAULTS, with_teacher=False)


def build_simulation(config: Config, federation: Federation, *, method: Method | None = None) -> Simulation:
    """Puts a federation on the device and initialises its state; `method` is used instead of the config's if given."""
    network = make_network(config, federation.dataset.classes)
    method = method or METHODS[config.method](config)
    data, test = to_device(federation, image_size=config.image_size, resize_to=config.resize)
    # A federation without unlabeled samples, or a method that leaves them out, does not pay for a teacher.
    with_teacher = method.teacher and bool(data.unlabeled.any())
    algorithm, warmup = make_algorithms(config, network, method, with_teacher=with_teacher)
    hyper = jax.tree.map(jnp.float32, Hyper.of(config))
    state = init_state(algorithm, jax.random.key(config.seed), config.clients, hyper)
    return Simulation(algorithm, warmup, state, *algorithm.axis.replicate((data, test, hyper)))
