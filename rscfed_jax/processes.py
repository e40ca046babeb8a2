"""Several processes, one program: each runs the same command, and only the first of them writes.

JAX is imported when it is needed, so that flags are checked at once.
"""

import io
import os
import socket
import sys
import time
from typing import NamedTuple

import numpy as np

from rscfed_jax.config import SettingError

PATIENCE = 60  # seconds in which all processes must have come, and after which a silent one is taken for dead
MOST_PROCESSES = 100_000
# Variables in which a scheduler says how many processes it has started, and which one this is.
SCHEDULERS = (("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"), ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"))
ONE_ENDED = 4  # exit code of a process whose companions have ended


class Company(NamedTuple):
    """The processes of a run, as the command line or a scheduler names them."""

    coordinator: str | None = None  # HOST:PORT of the first process; None: alone, or JAX finds out by itself
    number: int = 1
    process: int = 0

    @classmethod
    def of(cls, coordinator: str | None, number: str | None, process: str | None) -> "Company":
        """Reads and checks the three flags."""
        flags = {"coordinator": coordinator, "num_processes": number, "process_id": process}
        given = [name for name, text in flags.items() if text is not None]
        if not given:
            ranks = [os.environ.get(name, "") for _, name in SCHEDULERS]
            return cls(process=next((int(rank) for rank in ranks if rank.isdecimal() and _in_a_cluster()), 0))
        if missing := [name for name in flags if name not in given]:
            needed = ", ".join("--" + name.replace("_", "-") for name in missing)
            raise SettingError(given[0], flags[given[0]], f"needs {needed} as well")
        # None of them is missing.
        assert coordinator is not None
        assert number is not None
        assert process is not None
        host, _, port = coordinator.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise SettingError("coordinator", coordinator, "must be HOST:PORT, the address of process 0")
        if not number.isdecimal() or not 1 <= int(number) <= MOST_PROCESSES:
            raise SettingError("num_processes", number, f"must be a whole number from 1 to {MOST_PROCESSES}")
        if not process.isdecimal() or int(process) >= int(number):
            raise SettingError("process_id", process, f"must be from 0 to {int(number) - 1}")
        return cls(coordinator, int(number), int(process))

    @property
    def writes(self) -> bool:
        """Whether this process is the one that writes; known before JAX starts."""
        return self.process == 0


ALONE = Company()


def connect(company: Company) -> None:
    """Joins the other processes by JAX's own means, before JAX is used for anything else."""
    import jax

    if company.coordinator is None:
        if _in_a_cluster() and not jax.distributed.is_initialized():
            jax.distributed.initialize(heartbeat_timeout_seconds=PATIENCE)
        return
    address = company.coordinator
    if company.process > 0:
        _wait_for(address)
    try:
        jax.distributed.initialize(
            address,
            company.number,
            company.process,
            initialization_timeout=PATIENCE,
            heartbeat_timeout_seconds=PATIENCE,
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise SettingError("coordinator", address, f"the processes did not meet in {PATIENCE} s: {reason}") from None


def leave(code: int) -> int:
    """Ends this process at once if others run with it: they must not wait for it, nor it for them."""
    if "jax" in sys.modules and sys.modules["jax"].distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _in_a_cluster() -> bool:
    """Whether a scheduler that JAX knows has started several processes of this program."""
    counts = [os.environ.get(name, "1") for name, _ in SCHEDULERS]
    hosts = os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",")
    return any(count.isdecimal() and int(count) > 1 for count in counts) or len(hosts) > 1


def _wait_for(coordinator: str) -> None:
    """Waits until something listens there: JAX itself would end the process when it waits in vain."""
    host, _, port = coordinator.rpartition(":")
    until = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
            return
        except OSError as error:
            if time.monotonic() > until:
                raise SettingError("coordinator", coordinator, f"does not answer in {PATIENCE} s: {error}") from None
            time.sleep(0.5)


def is_first() -> bool:
    """Whether this process is the one that writes."""
    import jax

    return jax.process_index() == 0


def any_of_them(flag: bool) -> bool:
    """Whether any process says so; all must ask."""
    import jax
    from jax.experimental import multihost_utils

    return flag if jax.process_count() == 1 else bool(multihost_utils.process_allgather(np.array(flag)).any())


def from_the_first(arrays: dict[str, np.ndarray] | None) -> dict[str, np.ndarray] | None:
    """Named arrays that the first process has, or None, for all of them."""
    import jax
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return arrays
    content = b""
    if arrays is not None:
        file = io.BytesIO()
        np.savez(file, **arrays)  # type: ignore[arg-type]  # NumPy's stubs see allow_pickle in it
        content = file.getvalue()
    size = int(multihost_utils.broadcast_one_to_all(np.int64(len(content))))
    if not size:
        return None
    text = np.frombuffer(content, np.uint8) if is_first() else np.zeros(size, np.uint8)
    with np.load(io.BytesIO(np.asarray(multihost_utils.broadcast_one_to_all(text)).tobytes())) as received:
        return dict(received)
