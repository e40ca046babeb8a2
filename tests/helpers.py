"""What several test files share: small federations and networks to train, runs to start, files to read."""

import ast
import dataclasses
import json
import re
from pathlib import Path

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.typing import DTypeLike

from rscfed_jax import cli
from rscfed_jax.config import Config, Hyper
from rscfed_jax.core.aggregation import Members, sub_consensus
from rscfed_jax.core.algorithm import Algorithm
from rscfed_jax.core.client_axis import CLIENTS, GRID, ClientAxis
from rscfed_jax.core.method import Method
from rscfed_jax.core.objective import Batch, Step
from rscfed_jax.core.round import init_state, one_round
from rscfed_jax.core.sampling import RandomSubsets
from rscfed_jax.data.federation import Federation
from rscfed_jax.data.loaders.synthetic import synthetic
from rscfed_jax.models.blocks import BatchNorm
from rscfed_jax.models.registry import model_like
from rscfed_jax.models.simple_cnn import SimpleCNN
from rscfed_jax.runner.build import to_device
from rscfed_jax.runner.snapshot import flat
from rscfed_jax.storage.checkpoint import Checkpoints, read_arrays
from rscfed_jax.storage.run_directory import RunDirectory

SIZES = (3, 17, 8, 25, 10)  # fewer than a batch, a short last batch, exactly a batch, ...
LABELED = (False, True, False, False, True)
CLASSES = 4
BATCH = 8


def ragged_federation(*, sizes=SIZES, labeled=LABELED, seed=0) -> Federation:
    """Clients of different sizes; two of five hold labels."""
    dataset = synthetic(train=sum(sizes), test=30, classes=CLASSES, size=16, channels=3, seed=seed)
    samples = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    visible = [np.full(size, has) for size, has in zip(sizes, labeled, strict=True)]
    return Federation(dataset, samples, visible)


def server_federation() -> Federation:
    """Four clients without labels, and the server with all labels of its own samples."""
    return ragged_federation(labeled=(False, False, False, False, True))._replace(server=4)


class TinyNetwork(nn.Module):
    """Two dense layers with batch statistics between them; compiles in no time."""

    dtype: DTypeLike = jnp.float32
    classes: int = CLASSES

    @nn.compact
    def __call__(self, images, *, train, valid=None):
        """[3, H, W, B] images to [B, classes] logits."""
        x = images.reshape(-1, images.shape[-1]).T[:, ::16]
        types = {"dtype": self.dtype, "param_dtype": self.dtype}
        x = nn.Dense(8, **types)(x)
        x = nn.relu(BatchNorm(**types)(x.T[:, None, None], train=train, valid=valid)[:, 0, 0].T)
        self.sow("intermediates", "features", x)
        return nn.Dense(self.classes, **types, name="l3")(x)


@dataclasses.dataclass(frozen=True)
class FixedSubsets:
    """A sampler that always draws the same."""

    subsets: tuple

    def __call__(self, key, data):
        """[M, K] client ids."""
        return jnp.asarray(self.subsets, jnp.int32)


class Tiny:
    """A small simulation in the precision that JAX has now; with the paper's CNN if `conv` names its form."""

    def __init__(self, federation=None, *, conv=None, own=(), **settings):
        dtype = jnp.float64 if jax.config.jax_enable_x64 else jnp.float32
        settings = {"lambda_u": 1.0, "beta": 20.0, "flip": True} | settings
        self.federation = federation or ragged_federation()
        hyper = Hyper.of(Config(**settings))
        self.hyper = jax.tree.map(dtype, hyper._replace(own=hyper.own | dict(own)))
        self.data, self.test = to_device(self.federation, image_size=16)
        self.network = (
            TinyNetwork(dtype) if conv is None else SimpleCNN(CLASSES, conv=conv, dtype=dtype, param_dtype=dtype)
        )
        self.key = jax.random.key(3)

    def algorithm(self, *, method=None, **more) -> Algorithm:
        """RSCFed with two subsets of three clients, unless told otherwise."""
        method = method or Method(sample=RandomSubsets(2, 3), aggregate=sub_consensus)
        return Algorithm(method, self.network, image_size=16, batch_size=BATCH, **more)

    def state(self, algorithm):
        """The state before round 0."""
        return init_state(algorithm, self.key, self.data.clients, self.hyper)


# One round as a program; equal algorithms share it in all tests of a process.
once = jax.jit(one_round, static_argnames="algorithm")


def stacked(models):
    """A list of models (lists of tensors) as one stacked pytree."""
    return {"params": {str(t): jnp.asarray(np.stack([m[t] for m in models])) for t in range(len(models[0]))}}


def single(model):
    """A list of tensors as a pytree."""
    return {"params": {str(t): jnp.asarray(tensor) for t, tensor in enumerate(model)}}


def members_of(sizes, labeled, healthy=None):
    """What a server knows of clients that are all healthy unless told otherwise."""
    healthy = np.ones(len(sizes), bool) if healthy is None else np.asarray(healthy)
    return Members(jnp.asarray(sizes), jnp.asarray(labeled), jnp.asarray(healthy))


def two_devices(chunk=1) -> ClientAxis:
    """Clients on two devices."""
    return ClientAxis(chunk, Mesh(np.array(jax.devices()[:2])[None], (GRID, CLIENTS)))


ROOT = Path(__file__).parents[1]
# All runs with these settings share a program; those of a table of the paper, too.
SMALL = {
    "dataset": "synthetic:train=120,test=40,classes=3,size=16",
    "image_size": 16,
    "gamma": "iid",
    "batch_size": 16,
    "devices": 1,
    "model": str(ROOT / "tests" / "tiny_network.py"),
    "rounds": 4,
    "eval_every": 4,
}


def flags_of(settings) -> list[str]:
    """Settings as the command line takes them."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]


def run(*arguments) -> int:
    """The exit code of a command, in this process."""
    try:
        return cli.main([str(argument) for argument in arguments])
    except SystemExit as stop:
        return stop.code


def records_of(out) -> list[dict]:
    """The lines of a run's metrics.jsonl, without the time."""
    return untimed(json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines())


def untimed(records) -> list[dict]:
    """Records or rows without the time."""
    return [{name: value for name, value in record.items() if name != "seconds"} for record in records]


class StopAfter:
    """Asks a run to stop after a number of chunks of rounds."""

    def __init__(self, chunks):
        self.left = chunks

    def __call__(self) -> bool:
        """Whether to stop now."""
        self.left -= 1
        return self.left <= 0


def save_npz(path, **changes) -> None:
    """A small data set as an npz file, some of its arrays changed or, if None, left out."""
    arrays = {
        "train_images": np.zeros((20, 8, 8, 3), np.uint8),
        "train_labels": np.arange(20) % 4,
        "test_images": np.zeros((8, 8, 8, 3), np.uint8),
        "test_labels": np.arange(8) % 4,
    } | changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})


def samples_of(page: Path) -> tuple[dict[str, str], str]:
    """The Python of a page: files that its reader saves, by name, and what the reader types in one session."""
    found = re.findall(r"^(?:<!-- file: (\S+) -->\n)?```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return {name: text for name, text in found if name}, "\n".join(text for name, text in found if not name)


def names_used(source: str) -> set[str]:
    """The attributes of `rj` in a source text."""
    nodes = ast.walk(ast.parse(source))
    return {node.attr for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "rj"}


class Lookup:
    """A network whose logits are its parameters [views, B, classes]; a view is the number of its row."""

    def apply(self, variables, view, *, train, valid=None, mutable=None):
        """[B, classes] logits."""
        logits = variables["params"][view]
        return (logits, {}) if mutable is not None else logits


def with_permuted_truth(data):
    """The data with the truth of the unlabeled samples in another order."""
    truth, hidden = np.array(data.truth), np.array(data.labels) < 0
    truth[hidden] = np.random.default_rng(1).permutation(truth[hidden])
    return data._replace(truth=jnp.asarray(truth))


class Echo:
    """A network whose logits are its images [classes, 1, 1, B], plus its parameters [classes]; features are both."""

    classes, dtype = 5, jnp.float64

    def apply(self, variables, view, *, train, valid=None, mutable=None):
        """[B, classes] logits."""
        logits = view[:, 0, 0].T + variables["params"]
        if mutable is None:
            return logits
        return logits, {"intermediates": {"features": (logits,)}} if "intermediates" in mutable else {}


def echoed(logits):
    """A view of which `Echo` makes the logits [B, classes]."""
    return jnp.asarray(logits).T[:, None, None]


def step_of(views, labels, *, valid=None, teacher=True, bias=0.0, **more) -> tuple[dict, Step]:
    """A model and a step for `Echo`: logits [B, classes] by view, labels [B], a teacher whose logits are shifted."""
    count = len(labels)
    model = {"params": jnp.zeros(Echo.classes)}
    there = jnp.ones(count, bool) if valid is None else jnp.asarray(valid)
    batch = Batch({name: echoed(logits) for name, logits in views.items()}, jnp.asarray(labels), there)
    batch = batch._replace(**{name: more.pop(name) for name in ("pseudo_labels", "partner") if name in more})
    sent = {"params": jnp.zeros(Echo.classes) + bias}
    rest = {"round": jnp.int32(0), "memory": None, "class_counts": None, "size": jnp.int32(count)} | more
    return model, Step(jax.random.key(0), batch, sent if teacher else None, sent, **rest)


def assert_same_run(out, expected) -> None:
    """Two run directories hold the same to the bit, wall clocks aside: records, summary, last state, best model."""
    assert records_of(out) == records_of(expected)
    summaries = [json.loads((Path(place) / "summary.json").read_text()) for place in (out, expected)]
    for summary in summaries:
        del summary["seconds_per_round"], summary["compile_seconds"]
    assert summaries[0] == summaries[1]
    last = str(summaries[0]["rounds"])
    for item in ("state", "model", "best"):
        one, other = (
            read_arrays(Path(place) / "checkpoints" / last / item / "arrays.npz") for place in (out, expected)
        )
        for arrays in (one, other):
            arrays.pop("log", None)  # it holds seconds; its records are in metrics.jsonl as well
        chex.assert_trees_all_equal(one, other)


def saved_rounds(out) -> list[int]:
    """The rounds of which a run directory holds a checkpoint."""
    return RunDirectory(out).saved_rounds


# A method in a file of its own, with a number of its own.
MINE = '''"""The supervised loss alone, weighed."""

from rscfed_jax import Method, mean_teacher_loss

NUMBERS = {"threshold": (0.9, "0..1", "factor of the loss")}


def method(config):
    return Method(objective=weighed, teacher="none")


def weighed(network, model, step, hyper):
    loss, told = mean_teacher_loss(network, model, step, hyper)
    return hyper.own["threshold"] * loss, told
'''


def store_model(out, settings, *, round_=4) -> dict:
    """Writes the checkpoint of a round, with a model of the paper's CNN for these settings, and returns the model."""
    like = model_like(SimpleCNN(classes=3), Config(**settings), 3)
    rng = np.random.default_rng(0)
    model = jax.tree.map(lambda leaf: rng.normal(0, 0.1, leaf.shape).astype(leaf.dtype), like)
    with Checkpoints(Path(out) / "checkpoints") as checkpoints:
        checkpoints.save(round_, {"model": flat(model), "best": flat(model), "state": {}}, accuracy={})
    return model
