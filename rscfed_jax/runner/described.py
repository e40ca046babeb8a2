"""Compiles rounds for devices that are not present, from a description of the device.

JAX compiles for a TPU or GPU on any machine that has its plugin. This shows memory and kernels, and whether the round
compiles at all, but no times.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rscfed_jax.config import Config, Hyper, SettingError
from rscfed_jax.core.algorithm import Algorithm
from rscfed_jax.core.client_axis import CLIENTS, GRID, LARGEST_AUTO_CHUNK, ClientAxis
from rscfed_jax.core.program import init_cells, run_cells
from rscfed_jax.core.types import OF_A_CELL, FederatedData, State
from rscfed_jax.data.federation import Federation
from rscfed_jax.models.registry import model_like
from rscfed_jax.runner.build import NO_OBJECTS, Objects, make_algorithms, slots_of_a_device, tree_bytes
from rscfed_jax.runner.fit import Fitted, client_bytes, fit, usable
from rscfed_jax.runner.moved_bytes import moved_bytes
from rscfed_jax.runner.step_cost import Parts, local_step, saved_bytes
from rscfed_jax.runner.targets import TARGETS

GPUS = Path(__file__).parent / "gpus"


def devices_of(name: str, number: int = 1) -> list[Any]:
    """`number` described devices of a target; refuses a target whose compiler is not installed."""
    if name not in TARGETS:
        raise SettingError("target", name, f"must be one of {', '.join(TARGETS)}")
    target = TARGETS[name]
    # What is remembered of a described device's program cannot be read again without the device.
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        if target.platform == "gpu":
            text = (GPUS / f"{name}.textproto").read_text()
            found = topologies.get_topology_desc(platform="cuda", target_config=text, topology=f"1x1x{number}").devices
        else:
            for topology in target.topologies:
                found = topologies.get_topology_desc(topology, "tpu").devices
                if len(found) >= number:
                    break
    except Exception as error:  # each plugin has errors of its own
        reason = f"needs its compiler, from the package {target.package}: {str(error).splitlines()[0][:100]}"
        raise SettingError("target", name, reason) from None
    if len(found) < number:
        raise SettingError("devices", number, f"must be from 1 to {len(found)} for the target {name}")
    return list(found[:number])


class Shapes(NamedTuple):
    """What decides on the shapes of a round's arguments, besides the config."""

    classes: int
    samples: int  # over all clients, which hold different ones
    largest: int  # samples of the largest client
    labeled: int  # clients with labels
    unlabeled: int  # clients with samples whose labels are hidden
    test: int = 0  # samples of the test set
    cells: int = 1

    @classmethod
    def of(cls, federations: Sequence[Federation]) -> "Shapes":
        """Those of a grid with a cell for each federation, which differ in their partitions only."""
        first = federations[0]
        return cls(
            classes=first.dataset.classes,
            samples=max(int(each.sizes.sum()) for each in federations),
            largest=max(int(each.sizes.max()) for each in federations),
            labeled=int(first.labeled.sum()),
            unlabeled=int(first.unlabeled.sum()),
            test=len(first.dataset.test_labels),
            cells=len(federations),
        )


def axis_for(devices: list[Any], *, chunk: int, grid_devices: int = 1, graphs: bool = False) -> ClientAxis:
    """The client axis over described devices."""
    mesh = Mesh(np.array(devices).reshape(grid_devices, -1), (GRID, CLIENTS)) if len(devices) > 1 else None
    return ClientAxis(chunk, mesh, graphs)


def arguments_of(
    algorithm: Algorithm, config: Config, shapes: Shapes, device: Any
) -> tuple[State, FederatedData, Hyper, jax.ShapeDtypeStruct]:
    """What `run_cells` takes, as shapes on the described devices."""
    axis, cells, clients = algorithm.axis, shapes.cells, config.holders
    alone = dataclasses.replace(algorithm, axis=ClientAxis())
    hyper = jax.tree.map(lambda _: jax.ShapeDtypeStruct((cells,), jnp.float32), Hyper.of(config))
    seeds = jax.ShapeDtypeStruct((cells,), jnp.int32)
    state = jax.eval_shape(lambda seeds, hyper: init_cells(alone, seeds, clients, hyper), seeds, hyper)
    side, samples, whole = config.resize, (shapes.samples,), jnp.int32
    parts = {
        "images": ((shapes.samples, side, side), jnp.uint32),
        **dict.fromkeys(("image_ids", "labels", "truth"), (samples, whole)),
        **dict.fromkeys(("starts", "sizes"), ((clients,), whole)),
        **dict.fromkeys(("labeled", "unlabeled"), ((clients,), jnp.bool_)),
        "labeled_ids": ((shapes.labeled,), whole),
        "unlabeled_ids": ((shapes.unlabeled,), whole),
        "class_counts": ((clients, shapes.classes), whole),
        "positions": ((1 << (shapes.largest - 1).bit_length(),), whole),
        "mean": ((3,), jnp.float32),
        "std": ((3,), jnp.float32),
    }
    sharing = Mesh(np.array([device]), (GRID,)) if axis.mesh is None else axis.mesh

    def placed(shape: tuple[int, ...], dtype: Any, *axes: str) -> jax.ShapeDtypeStruct:
        spec = PartitionSpec(*axes) if axis.mesh is not None else PartitionSpec()
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(sharing, spec))

    def of_state(leaf: Any) -> Any:
        return placed(leaf.shape, leaf.dtype, GRID)

    def of_client(leaf: Any) -> Any:
        return placed((cells, axis.rows(clients), *leaf.shape[2:]), leaf.dtype, GRID, CLIENTS)

    data = {}
    for name, (shape, dtype) in parts.items():
        shared = getattr(OF_A_CELL, name) is None
        data[name] = placed(shape, dtype) if shared else placed((cells, *shape), dtype, GRID)
    of_data: Any = FederatedData(**data)  # type: ignore[arg-type]  # shapes in place of arrays
    clients_state = jax.tree.map(of_client, state.clients)
    state = jax.tree.map(of_state, state._replace(clients=None))._replace(clients=clients_state)
    return state, of_data, jax.tree.map(of_state, hyper), placed((), jnp.int32)


def compile_round(
    name: str, config: Config, shapes: Shapes, *, devices: int = 1, grid_devices: int = 1, objects: Objects = NO_OBJECTS
) -> Fitted:
    """Compiles the round of a config for a target, with the chunk that fits into its memory."""
    target, there = TARGETS[name], devices_of(name, devices)
    network, method = objects.network_of(config, shapes.classes), objects.method_of(config)
    model = model_like(network, config, shapes.classes)
    axis = axis_for(there, chunk=1, grid_devices=grid_devices, graphs=config.gpu_graphs)
    any_unlabeled = np.bool_(shapes.unlabeled > 0)
    algorithm, _ = make_algorithms(config, network, method, axis, any_unlabeled=any_unlabeled)
    state, data, hyper, rounds = arguments_of(algorithm, config, shapes, there[0])
    slots = slots_of_a_device(algorithm, data)

    def compile_(chunk: int) -> Any:
        chunked = dataclasses.replace(algorithm, axis=dataclasses.replace(axis, chunk=chunk))
        lowered = run_cells.lower(chunked, state, data, hyper, rounds, capacity=1)
        return axis.compile(lowered, platform=target.platform)

    form = "plain" if config.conv == "auto" else config.conv
    saved = saved_bytes(config, shapes.classes, Parts(algorithm, model), objects, conv=form)
    return fit(
        compile_,
        slots=slots,
        largest=min(slots, LARGEST_AUTO_CHUNK),
        budget=usable(target.limit, target.platform),
        each=client_bytes(saved, target.platform),
        fixed=tree_bytes(data) + tree_bytes(state) // devices,
        resident=shapes.test * config.image_size**2 * 4,
        constant=slots * tree_bytes(model),
        only=None if config.chunk == "auto" else min(int(config.chunk), slots),
    )


def compile_step(name: str, config: Config, classes: int, parts: Parts, objects: Objects, *, chunk: int) -> float:
    """Bytes that one local step of a chunk of clients moves on a target, by its compiler's count."""
    step, one = local_step(config, classes, parts, objects, conv=config.conv)
    sharding = NamedSharding(Mesh(np.array(devices_of(name)), (GRID,)), PartitionSpec())

    def stacked(leaf: jax.Array) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((chunk, *leaf.shape), leaf.dtype, sharding=sharding)

    lowered = jax.jit(jax.vmap(step)).lower(*jax.tree.map(stacked, one))
    program = ClientAxis().compile(lowered, platform=TARGETS[name].platform)
    cost: Any = program.cost_analysis()
    return float(cost["bytes accessed"]) if cost else float(moved_bytes(program.as_text() or ""))
