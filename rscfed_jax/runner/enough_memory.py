"""Whether an experiment fits into the memory that there is, as far as shapes tell before anything is allocated.

Counted is what the run cannot do without: images, client states and models. What XLA works in comes on top.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from rscfed_jax.config import SettingError
from rscfed_jax.core.sampling import RandomSubsets
from rscfed_jax.runner.build import Objects
from rscfed_jax.runner.choice import memory_limit
from rscfed_jax.runner.estimate import BYTES_PER_PIXEL, image_bytes, program_bytes
from rscfed_jax.runner.experiment import Experiment
from rscfed_jax.runner.memory import GIB, Room, room_left
from rscfed_jax.runner.step_cost import Parts


class WorkingSets(NamedTuple):
    """Clients that the devices hold at a time, in one part of a run."""

    part: str  # of the run
    labeled: int  # that are in all of them
    rows: int  # clients in all
    bytes: int


def check_memory(
    experiments: Sequence[Experiment], place: str, *, objects: Objects, device: jax.Device, capacity: int
) -> None:
    """Refuses experiments whose clients, in their `place`, take more memory than there is."""
    config = experiments[0].config
    if place == "device":
        needed = least_bytes(experiments, objects=objects, device=device)
        if needed > (room := room_left()).bytes:
            cells = f"{len(experiments)} cells of " if len(experiments) > 1 else ""
            less = "fewer --cells-at-once" if len(experiments) > 1 else "--population disk"
            reason = f"images and states of {cells}these clients take at least {needed / GIB:.2f} GiB, and there are"
            raise SettingError("clients", config.clients, f"{reason} {room}; try fewer clients or {less}")
        return
    for sets in working_sets(experiments[0], objects=objects, capacity=capacity):
        limit = memory_limit(device)
        room = room_left() if limit is None else Room(float(limit), "the memory of the device")
        if sets.bytes <= room.bytes:
            continue
        reason = (
            f"{sets.part} has {sets.rows:,} clients on the devices at a time, which take {sets.bytes / GIB:.2f} GiB"
        )
        advice = "use smaller subsets"
        if sets.labeled:
            reason += f", all {sets.labeled:,} labeled clients among them"
            advice = "use fewer --labeled-clients" + (" or no --warmup-rounds" if config.warmup_rounds else "")
        raise SettingError("population", place, f"{reason}, and there are {room}; {advice}")
    if place == "host":
        kept = _kept_bytes(experiments[0], objects)
        if kept > (room := room_left()).bytes:
            reason = f"the clients that are drawn keep {kept / GIB:.2f} GiB on the host, and there are {room}"
            raise SettingError("population", place, f"{reason}; use disk")


def least_bytes(experiments: Sequence[Experiment], *, objects: Objects, device: jax.Device) -> int:
    """Bytes of the host that a run cannot do without if the devices hold all its clients."""
    configs = [experiment.config for experiment in experiments]
    federations = [experiment.federation for experiment in experiments]
    images = max(image_bytes(*pair) for pair in zip(configs, federations, strict=True))
    if device.platform != "cpu":  # states are in the device's own memory, of which its compiler knows more
        return images
    states = program_bytes(configs, federations, objects=objects) - images
    return images + states // jax.process_count()


def working_sets(experiment: Experiment, *, objects: Objects, capacity: int) -> Iterator[WorkingSets]:
    """The working sets of a run whose population is not on the devices: of its rounds, and of its warm-up."""
    config, federation = experiment.config, experiment.federation
    parts = Parts.of(config, federation, objects)
    method, own = parts.algorithm.method, parts.client_bytes(config)
    labeled, sizes = int(federation.labeled.sum()), np.sort(federation.sizes)

    def held(part: str, slots: int, always: int) -> WorkingSets:
        rows = min(len(sizes), slots + always)
        # The images of the next set come while this one is in use, unless all are the same.
        images = int(sizes[len(sizes) - rows :].sum()) * config.resize**2 * BYTES_PER_PIXEL
        return WorkingSets(part, always, rows, rows * own + images * (2 if slots else 1))

    draws = isinstance(method.sample, RandomSubsets)
    slots = capacity * config.subsets * config.subset_size if draws else 0
    second = method.finish is not None
    yield held("a round with its second phase" if second else "a round", slots, labeled if second or not draws else 0)
    if config.warmup_rounds:
        yield held("the warm-up", 0, labeled)


def _kept_bytes(experiment: Experiment, objects: Objects) -> float:
    """Bytes that the clients keep which a run is expected to draw."""
    config = experiment.config
    own = Parts.of(config, experiment.federation, objects).client_bytes(config)
    missed = (1 - min(1, config.subset_size / config.holders)) ** (config.rounds * config.subsets)
    return config.holders * (1 - missed) * own
