"""Several processes, one program: each runs the same command, and only the first of them writes.

JAX is imported when it is needed, so that flags are checked at once.
"""

import functools
import json
import os
import socket
import sys
import threading
import time
from typing import Any, NamedTuple

import numpy as np

from rscfed_jax.config import SettingError
from rscfed_jax.runner.lifeline import in_between
from rscfed_jax.runner.signs import Watch

PATIENCE = 60  # seconds in which all processes must have come
JAX_PATIENCE = 300  # after which JAX takes one for dead: it ends the process with an abort, so the watch is quicker
MOST_PROCESSES = 100_000
# Variables in which a scheduler says how many processes it has started, and which one this is.
SCHEDULERS = (("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"), ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"))
LONGEST_NUMBER = 6
RUNTIME_ERRORS = ("UNKNOWN", "INTERNAL", "UNAVAILABLE", "ABORTED", "CANCELLED", "DEADLINE_EXCEEDED")  # of XLA


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
            ranks = [os.environ.get(name, "") for _, name in SCHEDULERS if _in_a_cluster()]
            return cls(process=next((int(rank) for rank in ranks if _is_number(rank)), 0))
        if missing := [name for name in flags if name not in given]:
            needed = ", ".join("--" + name.replace("_", "-") for name in missing)
            raise SettingError(given[0], flags[given[0]], f"needs {needed} as well")
        # None of them is missing.
        assert coordinator is not None
        assert number is not None
        assert process is not None
        host, _, port = coordinator.rpartition(":")
        if not host or not _is_number(port) or not 0 < int(port) < 65536:
            raise SettingError("coordinator", coordinator, "must be HOST:PORT, the address of process 0")
        if not _is_number(number) or not 1 <= int(number) <= MOST_PROCESSES:
            raise SettingError("num_processes", number, f"must be a whole number from 1 to {MOST_PROCESSES}")
        if not _is_number(process) or int(process) >= int(number):
            raise SettingError("process_id", process, f"must be from 0 to {int(number) - 1}")
        return cls(coordinator, int(number), int(process))

    @property
    def alone(self) -> bool:
        """Whether there is but this process."""
        return self.coordinator is None and not _in_a_cluster()

    @property
    def writes(self) -> bool:
        """Whether this process is the one that writes; known before JAX starts."""
        return self.process == 0


ALONE = Company()
_watch: Watch | None = None  # over the processes that this one has joined


def connect(company: Company) -> None:
    """Joins the other processes by JAX's own means, before JAX is used for anything else."""
    global _watch
    import jax

    if company.alone or jax.distributed.is_initialized():
        return
    address = company.coordinator
    flags: dict[str, Any] = {}  # for a scheduler's processes, which JAX finds by itself
    if address is not None:
        flags = {"coordinator_address": address, "num_processes": company.number, "process_id": company.process}
        if company.process > 0:
            _wait_for(address)
    named = address or "of the scheduler"
    # JAX itself aborts the process, with the addresses of its stack, when it waits in vain.
    missing = SettingError("coordinator", named, f"not all processes connected within {PATIENCE} s")
    alarm = threading.Timer(PATIENCE, _give_up, [missing])
    alarm.start()
    try:
        with in_between():
            jax.distributed.initialize(
                **flags, initialization_timeout=10 * PATIENCE, heartbeat_timeout_seconds=JAX_PATIENCE
            )
    except (RuntimeError, ValueError) as error:
        raise SettingError(
            "coordinator", named, f"the processes could not connect: {str(error).splitlines()[0]}"
        ) from None
    finally:
        alarm.cancel()
    _speak_from_this_host()
    _watch = _watch_the_others()


def _speak_from_this_host() -> None:
    """Tells the other processes an address of this host at which the coordinator's network reaches it.

    On CPU, JAX tells the address that the host's own name has, which many systems resolve to that of the loopback. It
    has no public setting for it; where these parts of it are not as expected, it stays so.
    """
    try:
        from jax._src import distributed, xla_bridge

        make: Any = xla_bridge._jax.make_gloo_tcp_collectives
        coordinator, process = distributed.global_state.coordinator_address, distributed.global_state.process_id
    except (ImportError, AttributeError):
        return
    if coordinator is None:
        return
    host = own_address(coordinator, first=process == 0)
    if host is not None:
        xla_bridge._jax.make_gloo_tcp_collectives = functools.partial(make, hostname=host)


def own_address(coordinator: str, *, first: bool) -> str | None:
    """The address of this host as the network of the coordinator sees it; None if it cannot be told.

    `first`: this is the coordinator itself.
    """
    host, _, port = coordinator.rpartition(":")
    try:
        kind, _, _, _, there = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind, socket.SOCK_DGRAM) as unsent:
            if first:
                unsent.bind((there[0], 0))  # fails for an address that leads here from elsewhere alone
            else:
                unsent.connect(there)  # sends nothing, but chooses the way
            return str(unsent.getsockname()[0])
    except (OSError, UnicodeError, ValueError):
        return None


def _watch_the_others() -> Watch | None:
    """Looks after the other processes; None where JAX's parts are not as expected."""
    try:
        from jax._src import distributed

        state: Any = distributed.global_state
        return Watch(state.client, number=state.num_processes, process=state.process_id)
    except (ImportError, AttributeError):
        return None


def _give_up(error: SettingError) -> None:
    print(f"rscfed-jax: error: {error}", file=sys.stderr, flush=True)
    os._exit(2)


def leave(code: int) -> int:
    """Ends this process at once if others run with it: they must not wait for it, nor it for them.

    With exit code 0 it ends when all are done. It does not return to Python's own end, which aborts a process that has
    a thread inside a call of JAX, as our watch is most of the time on a slow network.
    """
    if "jax" in sys.modules and sys.modules["jax"].distributed.is_initialized():
        if code == 0:
            if _watch is None:
                return code
            _watch.end()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _in_a_cluster() -> bool:
    """Whether a scheduler that JAX knows has started several processes of this program."""
    counts = [os.environ.get(name, "1") for name, _ in SCHEDULERS]
    return any(_is_number(count) and int(count) > 1 for count in counts)


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= LONGEST_NUMBER


def _wait_for(coordinator: str) -> None:
    """Waits until something listens there: JAX itself would end the process when it waits in vain."""
    host, _, port = coordinator.rpartition(":")
    until = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
            return
        except (OSError, UnicodeError) as error:
            if time.monotonic() > until:
                raise SettingError(
                    "coordinator", coordinator, f"does not answer within {PATIENCE} s: {error}"
                ) from None
            threading.Event().wait(0.5)  # not by a clock that can be set, as time.sleep under libfaketime


def is_of_the_runtime(error: Exception) -> bool:
    """Whether XLA has failed to run a program. Most calls raise its own error, but some a ValueError."""
    import jax

    status = str(error).partition(":")[0]
    return isinstance(error, jax.errors.JaxRuntimeError) or (isinstance(error, ValueError) and status in RUNTIME_ERRORS)


def is_first() -> bool:
    """Whether this process is the one that writes."""
    import jax

    return jax.process_index() == 0


def any_of_them(flag: bool) -> bool:
    """Whether any process says so; all must ask."""
    import jax
    from jax.experimental import multihost_utils

    return flag if jax.process_count() == 1 else bool(multihost_utils.process_allgather(np.array(flag)).any())


def as_letters(content: object) -> np.ndarray:
    """Encodes JSON as an array that processes can exchange."""
    return np.frombuffer(json.dumps(content).encode(), np.uint8)


def from_the_first(arrays: dict[str, np.ndarray] | None) -> dict[str, np.ndarray] | None:
    """Broadcasts process 0's named arrays (or None) to every process; arguments of other processes are ignored."""
    import jax
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return arrays
    forms = None if arrays is None else {name: (array.shape, str(array.dtype)) for name, array in arrays.items()}
    # First how long the list is, then the list, then one array after the other: each is the largest thing in memory.
    letters = as_letters(forms)
    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(letters))))
    letters = letters if is_first() else np.zeros(length, np.uint8)
    forms = json.loads(np.asarray(multihost_utils.broadcast_one_to_all(letters)).tobytes())
    if forms is None:
        return None
    own = arrays if arrays is not None and is_first() else {}
    return {
        name: np.asarray(multihost_utils.broadcast_one_to_all(own.get(name, np.zeros(shape, dtype))))
        for name, (shape, dtype) in forms.items()
    }
