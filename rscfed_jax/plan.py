"""What an experiment would take: memory, arithmetic and communication, without running it.

Arithmetic is XLA's own count of one compiled local step, with plain convolutions as an accelerator runs them, times
the number of steps. Memory is counted from shapes; what a chunk of clients takes while it trains is XLA's count too.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rscfed_jax.clients import ClientAxis
from rscfed_jax.config import Config, Hyper
from rscfed_jax.data.federation import Federation
from rscfed_jax.local.objective import Batch, Bulletin
from rscfed_jax.local.training import LocalTraining, init_client, train_step
from rscfed_jax.methods import METHODS
from rscfed_jax.report.text import as_console
from rscfed_jax.schedule import waves_of
from rscfed_jax.simulation import make_network, model_like, tree_bytes

CLIENT_COUNTS = (10, 50, 500, 10_000)
BYTES_PER_PIXEL = 4
# What a compilation for its count alone does not need: machine code that is fast.
QUICKLY: dict[str, Any] = {"xla_backend_optimization_level": 0}


class Step(NamedTuple):
    """One client's local step, as XLA counts it."""

    flops: float
    bytes_first: int  # memory that it works in, for a chunk of one client
    bytes_more: int  # and for each further client of the chunk


@dataclass(frozen=True)
class Estimate:
    """What one experiment takes, for one number of clients; bytes are those of one device unless said otherwise."""

    clients: int
    models_per_round: int  # trained, and sent up; where subsets share a client's model, at the most
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
        """For so many rounds, if all devices together reach so many FLOP/s."""
        return rounds * self.flops_per_round / flops_per_second / 3600


def client_bytes(config: Config, model: Any, *, with_teacher: bool) -> int:
    """Bytes that a client keeps from one selection to the next."""
    if config.client_state == "fresh":
        return 0
    hyper = Hyper.of(config)
    return tree_bytes(jax.eval_shape(lambda: init_client(_zeros(model), hyper, with_teacher=with_teacher)))


def image_bytes(config: Config, federation: Federation) -> int:
    """Bytes of the training and test images on a device."""
    train = int(federation.sizes.sum()) * config.resize**2
    return (train + len(federation.dataset.test_labels) * config.image_size**2) * BYTES_PER_PIXEL


def estimate(config: Config, federation: Federation, step_flops: float, *, clients: int, devices: int) -> Estimate:
    """What `config` takes with so many clients; if it has another number itself, they share its samples equally."""
    sizes = federation.sizes
    if clients == len(sizes):
        labeled = federation.labeled
    else:
        sizes = np.full(clients, max(sizes.sum() / clients, 1))
        labeled = np.arange(clients) < (config.labeled_clients or clients)
    steps = -(-sizes // config.batch_size) * config.local_epochs
    method = METHODS[config.method](config)
    model = model_like(config, federation.dataset.classes)
    slots = _slots(config, labeled)
    models = min(slots, clients) if config.repeat == "share" else slots
    if config.method in ("rscfed", "sso"):
        steps_per_round = float(steps.mean() * models)
    else:
        steps_per_round = float(steps[labeled].sum() if config.method == "fedavg" else steps.sum())
    own = client_bytes(config, model, with_teacher=method.teacher and federation.any_unlabeled)
    # A state is fetched by each device, and stored with its model.
    travels = devices * (2 * own + tree_bytes(model))
    _, in_wave, chunk = waves_of(slots, devices=devices, chunk=1, size=own + tree_bytes(model))
    return Estimate(
        clients=clients,
        models_per_round=models,
        steps_per_round=steps_per_round,
        flops_per_round=steps_per_round * step_flops,
        state_bytes=-(-clients // devices) * own,
        data_bytes=image_bytes(config, federation),
        models_bytes=(3 + -(-slots // devices)) * tree_bytes(model),
        exchange_bytes=in_wave * chunk * travels,
        more_bytes=travels,
        bytes_down=min(models, clients) * tree_bytes(model),
        bytes_up=models * tree_bytes(model),
    )


def _slots(config: Config, labeled: np.ndarray) -> int:
    """How many models a round averages; a client may have several of them."""
    if config.method in ("rscfed", "sso"):
        return config.subsets * config.subset_size
    return int(labeled.sum()) if config.method == "fedavg" else len(labeled)


def measure_step(config: Config, classes: int, *, with_teacher: bool) -> Step:
    """Compiles one local step for one client and for two, and asks XLA what they take."""
    network = make_network(config.replace(conv="plain"), classes)
    method = METHODS[config.method](config)
    local = LocalTraining(
        network, config.image_size, config.batch_size, with_teacher=with_teacher, objective=method.objective
    )
    model = _zeros(model_like(config, classes))
    hyper = jax.tree.map(jnp.float32, Hyper.of(config))
    view = jnp.zeros((3, config.image_size, config.image_size, config.batch_size), network.dtype)
    batch = Batch(view, view, jnp.zeros(config.batch_size, jnp.int32), jnp.ones(config.batch_size, bool))
    bulletin = Bulletin(jnp.int32(0), method.memory(network))
    client = init_client(model, hyper, with_teacher=with_teacher)

    def step(model: Any, client: Any, batch: Batch) -> Any:
        return train_step(local, model, client, batch, hyper.lr_labeled, hyper, bulletin)

    counts = []
    for chunk in (1, 2):
        arguments = jax.tree.map(partial(_repeated, times=chunk), (model, client, batch))
        program = jax.jit(jax.vmap(step)).lower(*arguments).compile(compiler_options=QUICKLY)
        memory: Any = program.memory_analysis()
        cost: Any = program.cost_analysis()
        taken = memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes
        counts.append((cost["flops"], taken))
    (flops, first), (_, second) = counts
    return Step(flops, first, max(second - first, 1))


def largest_chunk(step: Step, taken: Estimate, budget: float) -> int:
    """How many clients a device of `budget` bytes can train at once; 0 if not even one."""
    left = budget - taken.resident_bytes - step.bytes_first
    return 0 if left < 0 else 1 + int(left // (step.bytes_more + taken.more_bytes))


def group_bytes(configs: Sequence[Config], federations: Sequence[Federation]) -> int:
    """Bytes of data and state of cells that share a program, on all devices together; images counted once."""
    states = 0
    for config, federation in zip(configs, federations, strict=True):
        model = model_like(config, federation.dataset.classes)
        with_teacher = METHODS[config.method](config).teacher and federation.any_unlabeled
        states += config.clients * client_bytes(config, model, with_teacher=with_teacher)
        states += (3 + _slots(config, federation.labeled)) * tree_bytes(model)
    return states + max(image_bytes(*pair) for pair in zip(configs, federations, strict=True))


def as_lines(config: Config, federation: Federation, *, memory: float, flops: float | None) -> Iterator[str]:
    """The plan for a reader, and as one JSON object in its last line."""
    model = model_like(config, federation.dataset.classes)
    devices = ClientAxis.create(config.chunk, config.devices, model_bytes=tree_bytes(model)).devices
    with_teacher = METHODS[config.method](config).teacher and federation.any_unlabeled
    step = measure_step(config, federation.dataset.classes, with_teacher=with_teacher)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(model["params"]))
    yield f"{config.model}: {parameters:,} parameters, {_size(tree_bytes(model))}"
    own = client_bytes(config, model, with_teacher=with_teacher)
    yield f"a client keeps {_size(own)} between selections (teacher and momentum; --client-state {config.client_state})"
    yield f"a local step of {config.batch_size} images: {step.flops / 1e6:,.0f} MFLOP, by XLA's count"
    fewest = config.subset_size if config.method in ("rscfed", "sso") else 1
    counts = sorted({config.clients, *(count for count in CLIENT_COUNTS if count >= fewest)})
    rows = [estimate(config, federation, step.flops, clients=count, devices=devices) for count in counts]
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
    yield json.dumps(
        {
            "parameters": parameters,
            "model_bytes": tree_bytes(model),
            "client_bytes": own,
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


def _zeros(like: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)


def _repeated(leaf: jax.Array, *, times: int) -> jax.Array:
    return jnp.broadcast_to(leaf, (times, *leaf.shape))
