"""Four CPU devices for all tests, quick compilation, and the same examples every time."""

import gc
import os
import sys

import jaxlib

# Tests compile many programs and run each for a moment: a quick compilation matters more than a quick program.
FLAGS = "--xla_backend_optimization_level=0"
if jaxlib.__version__.startswith("0.10."):  # XLA ends a process that gives it a flag it does not know
    FLAGS += " --xla_cpu_use_fusion_emitters=false"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}"

import jax
import pytest
from hypothesis import HealthCheck, settings

jax.config.update("jax_num_cpu_devices", 4)
# Commands that a test runs would turn it on for those after it; writing programs to it has crashed once.
jax.config.update("jax_enable_compilation_cache", False)
jax.devices()  # starts JAX, so that no command of a test chooses another number
# Tracing makes many small objects, and the collector would look through all of JAX again and again.
gc.freeze()
gc.set_threshold(100_000, 20, 100)
# The same examples every time, so that a change is judged by what it changed.
settings.register_profile(
    "suite", deadline=None, max_examples=50, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")


@pytest.fixture(scope="module", autouse=True)
def forget_programs():
    """Compiled programs of a file's tests are of no use to the next file, but take memory."""
    yield
    jax.clear_caches()
    if "rscfed_jax.runner.loop" in sys.modules:
        sys.modules["rscfed_jax.runner.compiled"]._COMPILED.clear()


@pytest.fixture
def x64():
    """JAX in double precision."""
    with jax.enable_x64(True):
        yield
