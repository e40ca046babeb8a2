"""From settings to the parts of a program: names are resolved to functions here, once."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from rscfed_jax.clients import GRID, ClientAxis
from rscfed_jax.config import Config, Hyper, SettingError
from rscfed_jax.data.federation import Federation
from rscfed_jax.data.table import OF_A_CELL, FederatedData, TestData, cells_to_host
from rscfed_jax.faults import NO_FAULTS, Faults
from rscfed_jax.local.training import LocalTraining
from rscfed_jax.methods import METHODS
from rscfed_jax.methods.base import Method
from rscfed_jax.models import MODELS
from rscfed_jax.repeat import REPEATS
from rscfed_jax.rounds import Algorithm, State, init_cells, place_state
from rscfed_jax.rundir import check_stored
from rscfed_jax.sampling import LabeledClients
from rscfed_jax.stored_model import load_model


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


def model_like(config: Config, classes: int) -> Any:
    """Shapes and types of a model."""
    network = make_network(config, classes)
    images = jnp.zeros((3, config.image_size, config.image_size, 1))
    return jax.eval_shape(lambda: dict(network.init(jax.random.key(0), images, train=False)))


def tree_bytes(tree: Any) -> int:
    """Bytes of the arrays of a pytree."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def make_algorithms(
    config: Config, network: nn.Module, method: Method, axis: ClientAxis, *, with_teacher: bool
) -> tuple[Algorithm, Algorithm]:
    """The static part of the config's rounds by `method`, and of its warm-up rounds."""

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
        keeps_clients = config.client_state == "kept"
        return Algorithm(method, local, REPEATS[config.repeat], axis, faults, keeps_clients)

    on_labeled = dataclasses.replace(method, sample=LabeledClients(), aggregate=method.warmup)
    # The warm-up is before the experiment: nothing goes wrong in it.
    main = algorithm(method, Faults.of(config), with_teacher=with_teacher)
    return main, algorithm(on_labeled, NO_FAULTS, with_teacher=False)


def build_simulation(config: Config, federation: Federation, *, method: Method | None = None) -> Simulation:
    """Puts a federation on the device and initialises its state; `method` is used instead of the config's if given."""
    cells = build_cells([config], [federation], method=method)
    if config.init_from is not None:
        cells = start_from(cells, config.init_from)
    return cell_of(cells, 0)


def build_cells(
    configs: Sequence[Config], federations: Sequence[Federation], *, method: Method | None = None, grid_devices: int = 1
) -> Simulation:
    """The same for G experiments that share a program: state, data and numbers have a leading axis of G cells.

    The configs may differ in numbers, seed and partition, not in what changes a shape or the program. Where G is no
    multiple of `grid_devices`, the last cell is repeated to fill them.
    """
    for config, federation in zip(configs, federations, strict=True):
        if (held := len(federation.members)) != config.clients:
            raise SettingError("clients", config.clients, f"must be that of the federation, which has {held}")
    padding = -len(configs) % grid_devices
    configs = [*configs, *[configs[-1]] * padding]
    federations = [*federations, *[federations[-1]] * padding]
    config = configs[0]
    network = make_network(config, federations[0].dataset.classes)
    method = method or METHODS[config.method](config)
    # A federation without unlabeled samples, or a method that leaves them out, does not pay for a teacher.
    with_teacher = method.teacher and federations[0].any_unlabeled
    model = model_like(config, federations[0].dataset.classes)
    axis = ClientAxis.create(config.chunk, config.devices, grid_devices, model_bytes=tree_bytes(model))
    algorithm, warmup = make_algorithms(config, network, method, axis, with_teacher=with_teacher)
    data, test = cells_to_host(federations, image_size=config.image_size, resize_to=config.resize)
    hypers = [Hyper.of(config) for config in configs]
    hyper = axis.place(Hyper(*(np.array(numbers, np.float32) for numbers in zip(*hypers, strict=True))), GRID)
    seeds = axis.place(np.array([config.seed for config in configs], np.int32), GRID)
    return Simulation(
        algorithm,
        warmup,
        state=init_cells(algorithm, seeds, config.clients, hyper),
        data=FederatedData(
            *(axis.place(leaf, *(() if part is None else (GRID,))) for leaf, part in zip(data, OF_A_CELL, strict=True))
        ),
        test=axis.place(test),
        hyper=hyper,
    )


def start_from(simulation: Simulation, path: str) -> Simulation:
    """The same with the model under `path` as that of every cell."""
    check_stored(path, setting="init_from")
    state, axis = simulation.state, simulation.algorithm.axis
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), state.model)
    model, _ = load_model(path, like, setting="init_from")
    model = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (len(state.round), *leaf.shape)), model)
    state = state._replace(model=axis.place(model, GRID), initial_model=axis.place(model, GRID))
    return simulation._replace(state=state)


def cell_of(simulation: Simulation, number: int) -> Simulation:
    """One of the experiments of `build_cells`, without the leading axis."""
    algorithm = simulation.algorithm
    state, hyper = jax.tree.map(lambda leaf: leaf[number], (simulation.state, simulation.hyper))
    data = [leaf if part is None else leaf[number] for leaf, part in zip(simulation.data, OF_A_CELL, strict=True)]
    return simulation._replace(
        state=place_state(algorithm.axis, state),
        data=algorithm.axis.place(FederatedData(*data)),
        hyper=algorithm.axis.place(hyper),
    )
