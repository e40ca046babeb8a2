"""From settings to the parts of a program: names are resolved to functions here, once."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from rscfed_jax.config import RECORD, Config, Hyper, SettingError
from rscfed_jax.config.checks import check_members
from rscfed_jax.config.registry import METHODS, NO_FILE
from rscfed_jax.core.algorithm import Algorithm
from rscfed_jax.core.client_axis import GRID, ClientAxis, place_data
from rscfed_jax.core.faults import NO_FAULTS, Faults
from rscfed_jax.core.method import Labeled, Method
from rscfed_jax.core.optimizer import SERVER_OPTIMIZERS, ServerOptimizer
from rscfed_jax.core.program import init_cells, init_cells_on_cpu
from rscfed_jax.core.repeat import REPEATS
from rscfed_jax.core.round import initial_memory, place_state
from rscfed_jax.core.sampling import LabeledClients
from rscfed_jax.core.types import OF_A_CELL, FederatedData, Model, State, TestData, data_of_cell
from rscfed_jax.data.federation import Federation
from rscfed_jax.data.table import test_table, train_table
from rscfed_jax.methods.registry import method_of, with_settings
from rscfed_jax.models.registry import feature_size, model_like, name_of, network_of
from rscfed_jax.runner.population import Population, Stage
from rscfed_jax.runner.stored_model import load_model


class Simulation(NamedTuple):
    """All that a run needs, on the device."""

    algorithm: Algorithm
    warmup: Algorithm  # the rounds on the labeled clients alone
    state: State
    data: FederatedData
    test: TestData
    hyper: Hyper
    stage: Stage | None = None  # where the data are a working set of a larger population: how others come


class Objects(NamedTuple):
    """A method and a network that were given as objects; None means the one that the config names."""

    method: Method | None = None
    network: nn.Module | None = None

    def named_in(self, config: Config) -> Config:
        """The config with the names of the objects in it, by which a run directory knows them again."""
        changes: dict[str, Any] = {}
        if self.method is not None and not self._is_built_in(config):
            name = self.method.name
            if not name.isidentifier() or name in METHODS.declarations:
                reason = "must have a name of its own, of letters, digits and underscores: Method(name='mine', ...)"
                raise SettingError("method", repr(name), reason)
            # A method that was made of the config's keeps its defaults and numbers.
            before = {f"{config.method}_{number}": None for number in config.own}
            numbers = {f"{name}_{number}": value for number, value in config.numbers.items()}
            changes |= before | numbers | {"method": name, "method_hash": NO_FILE}
        if self.network is not None:
            changes |= {"model": name_of(self.network), "model_hash": NO_FILE}
        record = {RECORD: [*config.given(), *changes]}
        return Config(**config.resolved() | changes | record) if changes else config

    def _is_built_in(self, config: Config) -> bool:
        """Whether the method is the very one that the config names."""
        return config.method_file is not None and self.method == method_of(config)

    def method_of(self, config: Config) -> Method:
        """The method to run."""
        method = method_of(config) if self.method is None else with_settings(self.method, config)
        if method.sample is None:
            raise SettingError("method", method.name, "must say who takes part: give sample=, or a file with SAMPLES")
        return method

    def network_of(self, config: Config, classes: int, *, conv: str | None = None) -> nn.Module:
        """The network to train; `conv` is the form of its convolutions, if it is another than the config's."""
        if self.network is None and conv not in (None, config.conv):
            config = config.replace(conv=conv)
        return self.network or network_of(config, classes)


NO_OBJECTS = Objects()


def tree_bytes(tree: Any) -> int:
    """Bytes of the arrays of a pytree."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def to_device(
    federation: Federation, *, image_size: int, resize_to: int | None = None
) -> tuple[FederatedData, TestData]:
    """Resizes, sorts by client, hides labels, and puts the federation on the device.

    Training images are kept at the side `resize_to` (default 5/4 of `image_size`), of which crops are taken.
    """
    cells = FederatedData(**train_table([federation], image_size=image_size, resize_to=resize_to))
    data = data_of_cell(cells, 0)
    test = TestData(**test_table(federation.dataset, image_size=image_size))
    return jax.tree.map(jnp.asarray, (data, test))


def make_algorithms(
    config: Config, network: nn.Module, method: Method, axis: ClientAxis, *, any_unlabeled: bool | np.bool
) -> tuple[Algorithm, Algorithm]:
    """The static part of the config's rounds by `method`, and of its warm-up rounds."""
    # A federation without unlabeled samples does not pay for a teacher.
    main = method if any_unlabeled else dataclasses.replace(method, teacher="none")
    on_labeled = dataclasses.replace(
        method, sample=LabeledClients(), aggregate=method.warmup, teacher="none", batches=Labeled(), finish=None
    )

    def algorithm(method: Method, faults: Faults, server: ServerOptimizer | None) -> Algorithm:
        return Algorithm(
            method,
            network,
            image_size=config.image_size,
            batch_size=config.batch_size,
            epochs=config.local_epochs,
            repeat=REPEATS[config.repeat],
            axis=axis,
            faults=faults,
            keeps_clients=config.client_state == "kept",
            proximal=config.prox_mu > 0,
            balanced=config.balanced_softmax,
            server=server,
            precision=config.precision,
            server_id=config.server,
        )

    # The warm-up is before the experiment: nothing goes wrong in it, and the server takes what it gets.
    server = SERVER_OPTIMIZERS[config.server_optimizer]
    return algorithm(main, Faults.of(config), server), algorithm(on_labeled, NO_FAULTS, None)


def build_simulation(
    config: Config, federation: Federation, *, method: Method | None = None, network: nn.Module | None = None
) -> Simulation:
    """Puts a federation on the device and initialises its state; `method` and `network` replace the config's."""
    return cell_of(build_cells([config], [federation], objects=Objects(method, network)), 0)


def build_cells(
    configs: Sequence[Config],
    federations: Sequence[Federation],
    *,
    objects: Objects = NO_OBJECTS,
    grid_devices: int = 1,
    conv: str | None = None,
    working_sets_of: int | None = None,
) -> Simulation:
    """The same for G experiments that share a program: state, data and numbers have a leading axis of G cells.

    The configs may differ in numbers, seed and partition, not in what changes a shape or the program. Where G is no
    multiple of `grid_devices`, the last cell is repeated to fill them. `conv` is the form of convolutions that was
    chosen where the configs leave it open. With `working_sets_of`, which needs a single experiment, the devices
    hold only the clients of that number of rounds.
    """
    for config, federation in zip(configs, federations, strict=True):
        if (held := len(federation.samples[: federation.server])) != config.clients:
            raise SettingError("clients", config.clients, f"must be {held}, as in the federation")
        if federation.server != config.server:
            at = "clients" if federation.server is None else "server"
            raise SettingError("labels_at", config.labels_at, f"must be {at}, as in the federation")
    padding = -len(configs) % grid_devices
    configs = [*configs, *[configs[-1]] * padding]
    federations = [*federations, *[federations[-1]] * padding]
    config, dataset = configs[0], federations[0].dataset
    method, network = objects.method_of(config), objects.network_of(config, dataset.classes, conv=conv)
    model = model_like(network, config, dataset.classes)
    if method.features and feature_size(network, config) is None:
        reason = f"gives no features, which the method {config.method} needs; docs/extending.md shows how to add them"
        raise SettingError("model", config.model, reason)
    axis = ClientAxis.create(
        config.chunk, config.devices, grid_devices, model_bytes=tree_bytes(model), graphs=config.gpu_graphs
    )
    algorithm, warmup = make_algorithms(config, network, method, axis, any_unlabeled=federations[0].unlabeled.any())
    stage = None
    if working_sets_of is None:
        table = FederatedData(**train_table(federations, image_size=config.image_size, resize_to=config.resize))
    else:
        stage = Stage(Population(config, federations[0]), algorithm, capacity=working_sets_of)
        table = stage.blank()
    assert method.sample is not None
    sample = jax.vmap(method.sample, in_axes=(None, OF_A_CELL))
    check_members(config, jax.eval_shape(sample, jax.random.key(0), table).shape[-1])
    hypers = [Hyper.of(config) for config in configs]
    hyper = axis.place(jax.tree.map(lambda *numbers: np.array(numbers, np.float32), *hypers), GRID)
    seeds = axis.place(np.array([config.seed for config in configs], np.int32), GRID)
    init = init_cells_on_cpu if axis.device.platform == "cpu" else init_cells
    simulation = Simulation(
        algorithm,
        warmup,
        state=init(algorithm, seeds, table.sizes.shape[1], hyper),
        data=place_data(axis, table),
        test=axis.place(TestData(**test_table(dataset, image_size=config.image_size))),
        hyper=hyper,
        stage=stage,
    )
    if config.init_from is None:
        return simulation
    start, _ = load_model(config.init_from, model, setting="init_from")
    return simulation._replace(state=start_from(algorithm, simulation.state, start))


def slots_of_a_device(algorithm: Algorithm, data: FederatedData) -> int:
    """How many clients of G cells a device trains in a round, one after the other or at once; shapes are enough."""
    axis = algorithm.axis
    assert algorithm.method.sample is not None
    sample = jax.vmap(algorithm.method.sample, in_axes=(None, OF_A_CELL))
    cells, *drawn = jax.eval_shape(sample, jax.random.key(0), data).shape  # [G, M, K]
    return -(-(cells // axis.grid_devices * math.prod(drawn)) // axis.client_devices)


def start_from(algorithm: Algorithm, state: State, model: Model) -> State:
    """The state of all cells before their first round, with this model as their initial one."""
    cells = len(state.round)

    def everywhere(tree: Any) -> Any:
        broadcast = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (cells, *leaf.shape)), tree)
        return algorithm.axis.place(broadcast, GRID)

    memory = everywhere(initial_memory(algorithm, model))
    return state._replace(model=everywhere(model), initial_model=everywhere(model), memory=memory)


def cell_of(simulation: Simulation, number: int) -> Simulation:
    """One of the experiments of `build_cells`, without the leading axis."""
    algorithm = simulation.algorithm
    state, hyper = jax.tree.map(lambda leaf: leaf[number], (simulation.state, simulation.hyper))
    return simulation._replace(
        state=place_state(algorithm.axis, state),
        data=algorithm.axis.place(data_of_cell(simulation.data, number)),
        hyper=algorithm.axis.place(hyper),
    )
