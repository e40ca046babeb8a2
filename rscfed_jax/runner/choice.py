"""How a run uses its device: the form of its convolutions and the number of clients at once. Chosen once, then kept.

On CPU nothing is tried: products of matrices, one client at a time on every core, were measured fastest.
"""

import dataclasses
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from rscfed_jax.config import Config
from rscfed_jax.core.client_axis import LARGEST_AUTO_CHUNK
from rscfed_jax.data.federation import Federation
from rscfed_jax.runner import race
from rscfed_jax.runner.build import NO_OBJECTS, Objects, Simulation, slots_of_a_device, tree_bytes
from rscfed_jax.runner.compiled import compiled
from rscfed_jax.runner.fit import client_bytes, fit, usable
from rscfed_jax.runner.processes import as_letters, from_the_first, is_first
from rscfed_jax.runner.step_cost import Parts, saved_bytes

GIB = 2**30


class Choice(NamedTuple):
    """The content of device.json."""

    device: str
    platform: str
    devices: int
    conv: str | None  # None: a network of the user's own
    chunk: int
    memory_gib: float | None  # of one device, that the compiled round takes; None where nobody asked
    limit_gib: float | None

    def __str__(self) -> str:
        clients = f"{self.chunk} client{'s' if self.chunk > 1 else ''} at once"
        memory = "" if self.memory_gib is None else f", {self.memory_gib:.2f} of {self.limit_gib:.2f} GiB"
        form = self.conv or "the network's own"
        return f"{self.devices} x {self.device}: {form} convolutions, {clients} on each{memory}"


def this_device() -> jax.Device:
    """A device of this process, which are all of a kind."""
    return jax.local_devices()[0]


def device_line() -> str:
    """The devices of this machine in words, and what is chosen on them where no setting says otherwise."""
    device = this_device()
    named = f"{jax.device_count()} x {device.device_kind}"
    if device.platform == "cpu":
        return f"{named}: matmul convolutions, 1 client at once on each"
    return f"{named}: a run times the convolutions, and fits the clients at once to the memory, before its first round"


def memory_limit(device: jax.Device) -> int | None:
    """Bytes that JAX may take of a device's memory; None where it does not say, as on CPU."""
    try:
        stats = device.memory_stats() or {}
    except jax.errors.JaxRuntimeError:
        return None
    return stats.get("bytes_limit")


def of_the_same_device(stored: dict[str, Any] | None, device: jax.Device) -> dict[str, Any]:
    """What an earlier part of the run chose; nothing if it ran on another kind of device."""
    return stored if stored and stored.get("device") == device.device_kind else {}


def choose_form(
    config: Config,
    federation: Federation,
    *,
    objects: Objects,
    stored: dict[str, Any],
    say: Callable[[str], None],
    device: jax.Device,
) -> str:
    """The form of the convolutions: as set, as in the run so far, as remembered of this device, or as timed now."""
    if config.conv != "auto" or objects.network is not None or device.platform == "cpu":
        return config.conv
    if stored.get("conv") in race.FORMS:
        return stored["conv"]
    networks = {form: objects.network_of(config, federation.dataset.classes, conv=form) for form in race.FORMS}
    if len({*networks.values()}) == 1:  # a network of the user's own need not have forms
        return config.conv
    told = from_the_first({"conv": as_letters(_fastest(config, federation, objects, say, device))})
    assert told is not None
    return json.loads(told["conv"].tobytes())


def _fastest(
    config: Config, federation: Federation, objects: Objects, say: Callable[[str], None], device: jax.Device
) -> str | None:
    if not is_first():
        return None
    clients = min(config.subsets * config.subset_size, race.MOST_CLIENTS)
    key = race.key_of(config, clients=clients, device=device)
    if (form := race.remembered(key)) is not None:
        return form
    say(f"timing the forms of convolutions on {device.device_kind}")
    result = race.race(config, federation, clients=clients, objects=objects)
    if not result.seconds:
        return "auto"
    race.remember(key, result)
    figures = ", ".join(f"{form} {1000 * seconds:.2f} ms" for form, seconds in result.seconds.items())
    say(f"a step of {clients} clients: {figures}; {result.fastest} is used")
    return result.fastest


def choose_chunk(
    simulation: Simulation,
    config: Config,
    *,
    capacity: int,
    stored: dict[str, Any],
    device: jax.Device,
    objects: Objects = NO_OBJECTS,
) -> tuple[Simulation, Choice, int]:
    """The simulation with as many clients at once as its device has memory for, and compilations that this took.

    A chunk that was set and does not fit is refused.
    """
    axis = simulation.algorithm.axis
    form = getattr(simulation.algorithm.network, "conv", None)
    if form == "auto":
        form = "matmul" if device.platform == "cpu" else "plain"
    limit = memory_limit(device)
    slots = slots_of_a_device(simulation.algorithm, simulation.data)
    chunk = min(axis.chunk or slots, slots)
    facts = {"device": device.device_kind, "platform": device.platform, "devices": axis.devices, "conv": form}
    unknown = Choice(**facts, chunk=chunk, memory_gib=None, limit_gib=None)
    if device.platform == "cpu" or limit is None:
        return simulation, unknown, 0
    if config.chunk == "auto" and isinstance(stored.get("chunk"), int) and stored["chunk"] > 0:
        memory, most = stored.get("memory_gib"), stored.get("limit_gib")
        kept = unknown._replace(chunk=stored["chunk"], memory_gib=memory, limit_gib=most)
        return with_chunk(simulation, kept.chunk), kept, 0

    def compile_(chunk: int) -> Any:
        chunked = with_chunk(simulation, chunk)
        return compiled(chunked.algorithm, chunked, capacity=capacity)[0]

    state, data = simulation.state, simulation.data
    model = jax.eval_shape(lambda tree: jax.tree.map(lambda leaf: leaf[0], tree), state.model)
    parts, classes = Parts(simulation.algorithm, model), data.class_counts.shape[-1]
    fitted = fit(
        compile_,
        slots=slots,
        largest=min(slots, LARGEST_AUTO_CHUNK),
        budget=usable(limit, device.platform),
        each=client_bytes(saved_bytes(config, classes, parts, objects, conv=form or config.conv), device.platform),
        fixed=tree_bytes(data) + tree_bytes(state) // axis.devices,
        resident=tree_bytes(simulation.test),
        constant=slots * tree_bytes(model),
        only=None if config.chunk == "auto" else chunk,
    )
    known = unknown._replace(chunk=fitted.chunk, memory_gib=fitted.need.total / GIB, limit_gib=limit / GIB)
    return with_chunk(simulation, fitted.chunk), known, fitted.compilations


def with_chunk(simulation: Simulation, chunk: int) -> Simulation:
    """The simulation with this many clients at once."""
    axis = dataclasses.replace(simulation.algorithm.axis, chunk=chunk)
    algorithm, warmup = (
        dataclasses.replace(algorithm, axis=axis) for algorithm in (simulation.algorithm, simulation.warmup)
    )
    return simulation._replace(algorithm=algorithm, warmup=warmup)


def told_to_all(stored: dict[str, Any] | None) -> dict[str, Any] | None:
    """What the first process has read, for all processes."""
    told = from_the_first({"stored": np.array(as_letters(stored))})
    assert told is not None
    return json.loads(told["stored"].tobytes())
