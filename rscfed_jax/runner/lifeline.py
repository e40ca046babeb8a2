"""A connection to the coordinator that stays open when the coordinator is gone.

JAX's client aborts its process as soon as its connection to the coordinator closes. So it connects to the loopback, and
two threads pass on what either side sends. When the far side closes, the near one stays open and silent, and the
process has time to end in a line of its own.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

LARGEST = 65_536  # bytes passed on at once
CONNECTS_WITHIN = 20.0  # seconds
NO_GRPC_PROXY, NO_PROXY = "no_grpc_proxy", "no_proxy"  # variables that gRPC reads; the first hides the second


@contextlib.contextmanager
def in_between() -> Iterator[None]:
    """Puts itself between JAX's client and the coordinator, for a client made in this block.

    JAX has no public setting for it; where these parts of it are not as expected, the client connects directly.
    """
    try:
        from jax._src.lib import _jax

        make: Any = _jax.get_distributed_runtime_client
    except (ImportError, AttributeError):
        yield
        return

    def make_here(address: str, process: int, *others: Any, **flags: Any) -> Any:
        return make(address if process == 0 else lifeline(address), process, *others, **flags)

    module: Any = _jax
    module.get_distributed_runtime_client = make_here
    try:
        yield
    finally:
        module.get_distributed_runtime_client = make


def lifeline(address: str) -> str:
    """An address on the loopback that leads to `address`, HOST:PORT; the same if there is no loopback."""
    try:
        server = socket.create_server(("127.0.0.1", 0))
    except OSError:
        return address
    # No proxy leads to the loopback, whatever the network needs.
    direct = os.environ.get(NO_GRPC_PROXY) or os.environ.get(NO_PROXY) or ""
    os.environ[NO_GRPC_PROXY] = f"{direct},127.0.0.1".lstrip(",")
    threading.Thread(target=_accept, args=(server, address), daemon=True).start()
    return f"127.0.0.1:{server.getsockname()[1]}"


def _accept(server: socket.socket, address: str) -> None:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError):
        while True:
            near, _ = server.accept()
            try:
                far = socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECTS_WITHIN)
            except (OSError, UnicodeError):
                near.close()  # JAX tries again
                continue
            far.settimeout(None)
            for each in (near, far):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for work in (_up, _down):
                threading.Thread(target=work, args=(near, far), daemon=True).start()


def _up(near: socket.socket, far: socket.socket) -> None:
    """Passes on what JAX sends, until JAX closes; what nobody takes any more is lost."""
    with near, far, contextlib.suppress(OSError):
        while data := near.recv(LARGEST):
            with contextlib.suppress(OSError):
                far.sendall(data)
        far.shutdown(socket.SHUT_RDWR)


def _down(near: socket.socket, far: socket.socket) -> None:
    """Passes on what the coordinator sends, until it closes, which JAX is not told."""
    with contextlib.suppress(OSError):
        while data := far.recv(LARGEST):
            near.sendall(data)
