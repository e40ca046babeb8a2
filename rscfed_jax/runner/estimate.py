"""Estimates memory, arithmetic and communication of an experiment without running it.

Arithmetic is XLA's own count of one compiled local step, with plain convolutions as an accelerator runs them, times
the number of steps. Memory is counted from shapes; what a chunk of clients takes while it trains is XLA's count too.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rscfed_jax.config import Config, Hyper
from rscfed_jax.core.method import Labeled, Method, Separate
from rscfed_jax.core.schedule import waves_of
from rscfed_jax.data.federation import Federation
from rscfed_jax.report.tables import as_console
from rscfed_jax.runner.build import NO_OBJECTS, Objects, tree_bytes
from rscfed_jax.runner.holdings import holdings
from rscfed_jax.runner.memory import room_left
from rscfed_jax.runner.step_cost import Parts, StepCost, measure_step, step_flops

CLIENT_COUNTS = (10, 50, 500, 10_000)
BYTES_PER_PIXEL = 4
SECONDS_PER_STEP = 0.007  # of an RSCFed client, simple CNN and batch 64 on two CPU cores: benchmarks/round_time.py
MEASURED_FLOPS = 308e6  # that such a step has


@dataclass(frozen=True)
class Estimate:
    """What one experiment takes, for one number of clients; bytes are those of one device unless said otherwise."""

    clients: int
    models_per_round: int  # of clients, trained and sent up; where subsets share a client's model, at the most
    steps_per_round: float  # over all clients that train
    flops_per_round: float
    state_bytes: int  # teachers and momentum of this device's clients
    data_bytes: int  # training and test images, on every device
    models_bytes: int  # the global model, and this device's part of the round's models
    exchange_bytes: int  # what a wave of clients brings to each device, trained one at a time
    more_bytes: int  # and each further client that is trained with it
    bytes_down: int  # sent to clients in a round, at the most
    bytes_up: int

    @property
    def resident_bytes(self) -> int:
        """Memory that is taken before any client trains."""
        return self.state_bytes + self.data_bytes + self.models_bytes + self.exchange_bytes

    def hours(self, rounds: int, flops_per_second: float) -> float:
        """The time of these rounds, if all devices together reach this many FLOP/s."""
        return rounds * self.flops_per_round / flops_per_second / 3600


def slots_of(method: Method, labeled: np.ndarray) -> np.ndarray:
    """[N] how often each client trains in a round, on average; `labeled` [N] says who holds labels."""
    ask = getattr(method.sample, "slots", None)
    return np.ones(len(labeled)) if ask is None else ask(labeled)  # a sampler of a user's own need not say


def local_steps(config: Config, method: Method, sizes: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """[N] steps of each client in one training; `labels` [N] says how many of its samples have one."""
    epochs: Any = config.local_epochs
    labeled = labels > 0
    if method.epochs is not None:
        numbers = jax.tree.map(jnp.float32, Hyper.of(config))
        epochs = np.asarray(method.epochs(jnp.asarray(labeled), numbers))
    if isinstance(method.batches, Separate):
        return method.batches.steps(labels, sizes - labels) * epochs
    samples = labels if isinstance(method.batches, Labeled) else sizes
    return -(-samples // config.batch_size) * epochs


def steps_per_round(config: Config, method: Method, sizes: np.ndarray, labels: np.ndarray) -> float:
    """Steps of all clients in a round, on average, its second phase included."""
    slots = slots_of(method, labels > 0)
    if config.repeat == "share":  # a client's model serves every subset that drew it
        slots = np.minimum(slots, 1)
    steps = float((slots * local_steps(config, method, sizes, labels)).sum())
    if method.finish is not None:
        steps += method.finish.epochs * float((-(-labels // config.batch_size)).sum())
    return steps


def run_seconds(config: Config, federation: Federation, *, objects: Objects = NO_OBJECTS) -> float:
    """A guess at the time of a run on two CPU cores, where only a step of the simple CNN was measured.

    Other steps are taken to need as much longer as they have more arithmetic.
    """
    method, sizes, labels = objects.method_of(config), federation.sizes, federation.label_counts.sum(axis=1)
    on_labels = replace(method, batches=Labeled())
    warmup = config.warmup_rounds * float(local_steps(config, on_labels, sizes, labels).sum())
    flops = step_flops(config, federation.dataset.classes, Parts.of(config, federation, objects), objects=objects)
    steps = config.rounds * steps_per_round(config, method, sizes, labels) + warmup
    return steps * SECONDS_PER_STEP * flops / MEASURED_FLOPS


def image_bytes(config: Config, federation: Federation) -> int:
    """Bytes of the training and test images on a device."""
    train = int(federation.sizes.sum()) * config.resize**2
    return (train + len(federation.dataset.test_labels) * config.image_size**2) * BYTES_PER_PIXEL


def estimate(config: Config, federation: Federation, parts: Parts, step_flops: float, *, clients: int) -> Estimate:
    """What `config` takes with this many clients; if it has another number itself, they share its samples equally."""
    sizes, labels = holdings(config, federation, clients=clients)
    method, devices = parts.algorithm.method, parts.algorithm.axis.devices
    trains = slots_of(method, labels > 0)
    slots, models = round(trains.sum()), round(trains[:clients].sum())  # a server among the holders sends nothing
    models = min(models, clients) if config.repeat == "share" else models
    models += int((labels[:clients] > 0).sum()) if method.finish is not None else 0
    steps = steps_per_round(config, method, sizes, labels)
    own, model_bytes = parts.client_bytes(config), tree_bytes(parts.model)
    # A state is fetched by each device, and stored with its model.
    travels = devices * (2 * own + model_bytes)
    _, in_wave, chunk = waves_of(slots, devices=devices, chunk=1, size=own + model_bytes)
    return Estimate(
        clients=clients,
        models_per_round=models,
        steps_per_round=steps,
        flops_per_round=steps * step_flops,
        state_bytes=-(-len(sizes) // devices) * own,
        data_bytes=image_bytes(config, federation),
        models_bytes=(3 + -(-slots // devices)) * model_bytes,
        exchange_bytes=in_wave * chunk * travels,
        more_bytes=travels,
        bytes_down=min(models, clients) * model_bytes,
        bytes_up=models * model_bytes,
    )


def largest_chunk(step: StepCost, taken: Estimate, budget: float) -> int:
    """How many clients a device of `budget` bytes can train at once; 0 if not even one."""
    left = budget - taken.resident_bytes - step.bytes_first
    return 0 if left < 0 else 1 + int(left // (step.bytes_more + taken.more_bytes))


def program_bytes(
    configs: Sequence[Config], federations: Sequence[Federation], *, objects: Objects = NO_OBJECTS
) -> int:
    """Bytes of data and state of cells that share a program, on all devices together; images counted once."""
    states = 0
    for config, federation in zip(configs, federations, strict=True):
        parts = Parts.of(config, federation, objects)
        slots = round(slots_of(parts.algorithm.method, federation.labeled).sum())
        states += config.holders * parts.client_bytes(config) + (3 + slots) * tree_bytes(parts.model)
    return states + max(image_bytes(*pair) for pair in zip(configs, federations, strict=True))


def as_lines(
    config: Config, federation: Federation, *, memory: float, flops: float | None, objects: Objects = NO_OBJECTS
) -> Iterator[str]:
    """The plan for a reader, and as one JSON object in its last line."""
    parts = Parts.of(config, federation, objects)
    model, devices = parts.model, parts.algorithm.axis.devices
    step = measure_step(config, federation.dataset.classes, parts, objects=objects)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(model["params"]))
    yield f"{config.model}: {parameters:,} parameters, {_size(tree_bytes(model))}"
    kept = parts.client_bytes(config)
    yield f"a client keeps {_size(kept)} between selections (--client-state {config.client_state})"
    yield f"a local step of {config.batch_size} images: {step.flops / 1e6:,.0f} MFLOP, by XLA's count"
    fewest = getattr(parts.algorithm.method.sample, "subset_size", 1)
    counts = sorted({config.clients, *(count for count in CLIENT_COUNTS if count >= fewest)})
    rows = [estimate(config, federation, parts, step.flops, clients=count) for count in counts]
    yield f"on {devices} device{'s' if devices > 1 else ''}, with the {int(federation.sizes.sum()):,} samples shared:"
    lines = [["clients", "state", "data", "models", "exchange", "steps", "GFLOP", "down", "up", "chunk", "hours"]]
    for row in rows:
        hours = "" if flops is None else f"{row.hours(config.rounds, flops):.3g}"
        sizes = [_size(part) for part in (row.state_bytes, row.data_bytes, row.models_bytes, row.exchange_bytes)]
        sent = [_size(row.bytes_down), _size(row.bytes_up)]
        chunk = str(largest_chunk(step, row, memory)) if largest_chunk(step, row, memory) else "none"
        work = [f"{row.steps_per_round:,.0f}", f"{row.flops_per_round / 1e9:,.1f}"]
        lines.append([str(row.clients), *sizes, *work, *sent, chunk, hours])
    yield as_console(lines)
    yield (
        "state, data, models, exchange: memory of one device; steps, GFLOP, down, up: of one round; "
        f"chunk: most clients at once in {_size(memory)}; "
        + ("hours: give --flops" if flops is None else f"hours: {config.rounds} rounds at {flops:.3g} FLOP/s")
    )
    room = room_left()
    yield f"a run on this machine may take {room}"
    yield json.dumps(
        {
            "room_bytes": room.bytes if room.bytes < float("inf") else None,
            "parameters": parameters,
            "model_bytes": tree_bytes(model),
            "client_bytes": kept,
            "step_flops": step.flops,
            "devices": devices,
            "clients": [
                asdict(row)
                | {"largest_chunk": largest_chunk(step, row, memory)}
                | ({} if flops is None else {"hours": row.hours(config.rounds, flops)})
                for row in rows
            ],
        }
    )


def _size(number: float) -> str:
    """Bytes for a reader."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1000 or unit == "GiB":
            return f"{number:.4g} {unit}"
        number /= 1024
    raise AssertionError
