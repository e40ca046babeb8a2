"""Starts JAX: every CPU core is a device, other processes are joined, and compiled programs are cached."""

import contextlib
import os
import platform
from importlib import metadata

import jax

from rscfed_jax import __version__
from rscfed_jax.runner.processes import ALONE, Company, connect
from rscfed_jax.runner.program_cache import use_program_cache

# On CPU, XLA ends the process when a device waits 40 s for another: less than a large client may take.
PATIENCE = " ".join(
    f"--xla_cpu_collective_{what}_seconds={seconds}"
    for what, seconds in (("call_warn_stuck_timeout", 3600), ("call_terminate_timeout", 10**6), ("timeout", 10**6))
)
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")


def start_jax(company: Company = ALONE) -> None:
    """Uses every core, joins other processes, and remembers compiled programs so that a second start is quick."""
    claim_cores()
    connect(company)
    use_program_cache()


def use_all_cores() -> int:
    """Makes each CPU core a device of its own and returns how many there are; call it before JAX is used.

    One client per core is faster than several cores per client. Where JAX is running already, or XLA_FLAGS force a
    number of devices, it stays as it is.
    """
    claim_cores()
    return jax.device_count()


def claim_cores() -> None:
    """What `use_all_cores` does, without starting JAX."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_cpu_collective" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {PATIENCE}".strip()
    # A RuntimeError says that JAX is running already.
    with contextlib.suppress(RuntimeError):
        if "xla_force_host_platform_device_count" not in flags:
            jax.config.update("jax_num_cpu_devices", cores)


def surroundings(devices: int) -> dict[str, object]:
    """The device and the versions that a summary names."""
    device = jax.devices()[0]
    return {
        "device": f"{devices} x {device.device_kind} ({device.platform})",
        "versions": {
            "rscfed-jax": __version__,  # not the metadata's: a clone need not be installed
            **{name: metadata.version(name) for name in PACKAGES},
            "python": platform.python_version(),
        },
    }
