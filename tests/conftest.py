"""Four CPU devices for all tests, and a small ragged federation to train."""

import dataclasses
import os

# Tests compile many programs and run each for a moment: a quick compilation matters more than a quick program.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0"

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from jax.typing import DTypeLike

from rscfed_jax.aggregation import l2_distance
from rscfed_jax.clients import ONE_AT_A_TIME
from rscfed_jax.config import Config, Hyper
from rscfed_jax.data.federation import Federation
from rscfed_jax.data.sources import synthetic
from rscfed_jax.data.table import to_device
from rscfed_jax.local.training import LocalTraining
from rscfed_jax.methods.base import DistanceReweighted, Method
from rscfed_jax.models import SimpleCNN
from rscfed_jax.repeat import retrain
from rscfed_jax.rounds import Algorithm, init_state
from rscfed_jax.sampling import RandomSubsets

jax.config.update("jax_num_cpu_devices", 4)
# Commands that a test runs would turn it on for those after it; writing programs to it has crashed once.
jax.config.update("jax_enable_compilation_cache", False)
jax.devices()  # starts JAX, so that no command of a test chooses another number
# The same examples every time, so that a change is judged by what it changed.
settings.register_profile(
    "suite", deadline=None, max_examples=50, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")

SIZES = (3, 17, 8, 25, 10)  # fewer than a batch, a short last batch, exactly a batch, ...
LABELED = (False, True, False, False, True)
CLASSES = 4
BATCH = 8


@pytest.fixture
def x64():
    """JAX in double precision."""
    with jax.enable_x64(True):
        yield


def ragged_federation(*, sizes=SIZES, labeled=LABELED, seed=0) -> Federation:
    """Clients of different sizes; two of five hold labels."""
    dataset = synthetic(train=sum(sizes), test=30, classes=CLASSES, size=16, channels=3, seed=seed)
    members = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    visible = [np.full(size, has) for size, has in zip(sizes, labeled, strict=True)]
    return Federation(dataset, members, visible)


class TinyNetwork(nn.Module):
    """Two dense layers with batch statistics between them; compiles in no time."""

    dtype: DTypeLike = jnp.float32
    classes: int = CLASSES

    @nn.compact
    def __call__(self, images, *, train, valid=None):
        """[3, H, W, B] images to [B, classes] logits."""
        x = images.reshape(-1, images.shape[-1]).T[:, ::16]
        mask = None if valid is None else valid[:, None]
        types = {"dtype": self.dtype, "param_dtype": self.dtype}
        x = nn.Dense(8, **types)(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9, **types)(x, mask=mask)
        return nn.Dense(CLASSES, **types, name="l3")(nn.relu(x))


class Tiny:
    """A small simulation in the precision that JAX has now; with the paper's CNN if `conv` names its form."""

    def __init__(self, federation=None, *, conv=None, **settings):
        dtype = jnp.float64 if jax.config.jax_enable_x64 else jnp.float32
        settings = {"lambda_u": 1.0, "beta": 20.0, "flip": True} | settings
        self.federation = federation or ragged_federation()
        self.hyper = jax.tree.map(dtype, Hyper.of(Config(**settings)))
        self.data, self.test = to_device(self.federation, image_size=16)
        network = TinyNetwork(dtype) if conv is None else SimpleCNN(CLASSES, conv=conv, dtype=dtype, param_dtype=dtype)
        self.local = LocalTraining(network, image_size=16, batch_size=BATCH)
        self.key = jax.random.key(3)

    def algorithm(self, *, method=None, repeat=retrain, axis=ONE_AT_A_TIME) -> Algorithm:
        """RSCFed with two subsets of three clients, unless told otherwise."""
        method = method or Method(RandomSubsets(2, 3), DistanceReweighted(l2_distance))
        local = dataclasses.replace(self.local, objective=method.objective, two_views=method.two_views)
        return Algorithm(method, local, repeat, axis)

    def state(self, algorithm):
        """The state before round 0."""
        return init_state(algorithm, self.key, self.data.clients, self.hyper)


def assert_trees_close(actual, expected, *, atol):
    """Compares two pytrees leaf by leaf."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=atol, rtol=atol), actual, expected)


def assert_trees_equal(actual, expected):
    """Compares two pytrees to the bit."""
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), actual, expected)
