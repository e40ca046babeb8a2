"""CPU cores as devices of their own, which must be said before JAX starts."""

import contextlib
import os

import jax

# On CPU, XLA ends the process when a device waits 40 s for another: less than a large client may take.
PATIENCE = " ".join(
    f"--xla_cpu_collective_{what}_seconds={seconds}"
    for what, seconds in (("call_warn_stuck_timeout", 3600), ("call_terminate_timeout", 10**6), ("timeout", 10**6))
)


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
