"""The cost of one client's local step by XLA's count: arithmetic and memory, with plain convolutions."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rscfed_jax.config import Config, Hyper
from rscfed_jax.core.algorithm import Algorithm
from rscfed_jax.core.client import train_step
from rscfed_jax.core.client_axis import ClientAxis
from rscfed_jax.core.method import Method, Separate
from rscfed_jax.core.objective import Batch, Step
from rscfed_jax.core.optimizer import init_client
from rscfed_jax.data.federation import Federation
from rscfed_jax.models.registry import model_like
from rscfed_jax.runner.build import NO_OBJECTS, Objects, make_algorithms, tree_bytes

# What a compilation for its count alone does not need: machine code that is fast.
QUICKLY: dict[str, Any] = {"xla_backend_optimization_level": 0}
_FLOPS: dict[tuple, float] = {}  # of the steps that were counted already


class StepCost(NamedTuple):
    """One client's local step, as XLA counts it."""

    flops: float
    bytes_first: int  # memory that it works in, for a chunk of one client
    bytes_more: int  # and for each further client of the chunk


class Parts(NamedTuple):
    """What an estimate asks: the static parts of an experiment, and the shapes of its model."""

    algorithm: Algorithm
    model: Any

    @classmethod
    def of(cls, config: Config, federation: Federation, objects: Objects) -> "Parts":
        """The parts of a config."""
        classes = federation.dataset.classes
        network = objects.network_of(config, classes)
        model = model_like(network, config, classes)
        axis = ClientAxis.create(config.chunk, config.devices, model_bytes=tree_bytes(model))
        method = objects.method_of(config)
        algorithm, _ = make_algorithms(config, network, method, axis, any_unlabeled=federation.unlabeled.any())
        return cls(algorithm, model)

    def client_bytes(self, config: Config) -> int:
        """Bytes that a client keeps from one selection to the next."""
        if config.client_state == "fresh":
            return 0
        hyper, with_teacher = Hyper.of(config), self.algorithm.with_teacher
        return tree_bytes(jax.eval_shape(lambda: init_client(_zeros(self.model), hyper, with_teacher=with_teacher)))


def batch_size(config: Config, method: Method) -> int:
    """Samples in a batch."""
    kind = method.batches
    return kind.labeled + kind.unlabeled if isinstance(kind, Separate) else config.batch_size


class Given(NamedTuple):
    """A local step that is not taken yet."""

    algorithm: Algorithm
    hyper: Hyper
    see: Callable[[Any, Batch], Step]  # what the objective sees, from the model and the batch
    arguments: tuple  # model, client and batch, like those of training


def given_step(config: Config, classes: int, parts: Parts, objects: Objects, *, conv: str = "plain") -> Given:
    """What a local step works on, with convolutions of this form."""
    network = objects.network_of(config, classes, conv=conv)
    method = parts.algorithm.method
    size = batch_size(config, method)
    algorithm = Algorithm(method, network, config.image_size, size)
    model = _zeros(parts.model)
    hyper = jax.tree.map(jnp.float32, Hyper.of(config))
    view = jnp.zeros((3, config.image_size, config.image_size, size), network.dtype)
    labels = jnp.zeros(size, jnp.int32)
    views = {name: view for name, _ in method.views}
    batch = Batch(views, labels, jnp.ones(size, bool), labels, None if method.prepare is None else labels)
    if method.partners:
        batch = batch._replace(partner=batch)
    client = init_client(model, hyper, with_teacher=algorithm.with_teacher)

    def see(model: Any, batch: Batch) -> Step:
        now = Step(
            key=jax.random.key(0),
            batch=batch,
            teacher=model if method.teacher == "frozen" else None,
            sent=model,
            round=jnp.int32(0),
            memory=method.memory(network, model),
            size=jnp.int32(size),
            class_counts=jnp.zeros(classes, jnp.int32),
            prior=jnp.zeros(classes) if config.balanced_softmax else None,
            tally=None if method.tally is None else method.tally(network, model),
        )
        if method.prepare is not None:  # each sample is asked about once in an epoch, as it is trained on once
            now = now._replace(statistics=method.prepare(network, now, hyper).statistics)
        return now

    return Given(algorithm, hyper, see, (model, client, batch))


def local_step(
    config: Config, classes: int, parts: Parts, objects: Objects, *, conv: str = "plain"
) -> tuple[Callable[..., Any], tuple]:
    """One local step as a function, with convolutions of this form, and arguments like those it has in training."""
    algorithm, hyper, see, arguments = given_step(config, classes, parts, objects, conv=conv)

    def step(model: Any, client: Any, batch: Batch) -> Any:
        return train_step(algorithm, model, client, see(model, batch), hyper.lr_labeled, hyper)

    return step, arguments


def saved_bytes(config: Config, classes: int, parts: Parts, objects: Objects, *, conv: str = "plain") -> int:
    """Bytes that the forward pass of a client's step saves for its backward pass, as it is written down.

    A compiler computes some of it again instead. Nothing is compiled or computed here.
    """
    algorithm, hyper, see, arguments = given_step(config, classes, parts, objects, conv=conv)

    def backward(model: Any, client: Any, batch: Batch) -> Any:
        now = see(model, batch)
        now = now._replace(teacher=client.teacher) if algorithm.with_teacher else now

        def loss(params: Any) -> Any:
            return algorithm.method.objective(algorithm.network, {**model, "params": params}, now, hyper)[0]

        return jax.tree.leaves(jax.vjp(loss, model["params"])[1])

    return tree_bytes(jax.eval_shape(backward, *arguments))


def measure_step(config: Config, classes: int, parts: Parts, *, objects: Objects = NO_OBJECTS) -> StepCost:
    """Compiles one local step for one client and for two, and asks XLA what they take."""
    step, one = local_step(config, classes, parts, objects)
    counts = []
    for chunk in (1, 2):
        arguments = jax.tree.map(partial(repeated, times=chunk), one)
        program = jax.jit(jax.vmap(step)).lower(*arguments).compile(compiler_options=QUICKLY)
        memory: Any = program.memory_analysis()
        cost: Any = program.cost_analysis()
        taken = memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes
        counts.append((cost["flops"], taken))
    (flops, first), (_, second) = counts
    return StepCost(flops, first, max(second - first, 1))


def step_flops(config: Config, classes: int, parts: Parts, *, objects: Objects = NO_OBJECTS) -> float:
    """The arithmetic of one local step as it is written down, without a compilation; alike steps are counted once."""
    network = (config.model, config.model_hash, config.stem, objects.network)
    key = (parts.algorithm.method, network, config.image_size, config.batch_size, config.balanced_softmax, classes)
    if key not in _FLOPS:
        step, one = local_step(config, classes, parts, objects)
        cost: Any = jax.jit(step).lower(*one).cost_analysis()
        _FLOPS[key] = float(cost["flops"])
    return _FLOPS[key]


def _zeros(like: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)


def repeated(leaf: jax.Array, *, times: int) -> jax.Array:
    """[times, ...]: the array once for each client."""
    return jnp.broadcast_to(leaf, (times, *leaf.shape))
