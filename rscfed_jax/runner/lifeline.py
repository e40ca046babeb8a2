"""Connections to the coordinator that outlive a bad network, and even the coordinator.

JAX's client aborts its process as soon as its connection to the coordinator closes, and JAX's coordinator closes one
that takes nothing for 20 s. So both connect to their own host's loopback, and threads pass on what either side sends.
Between the hosts, only the system decides that a connection is lost. When the coordinator ends, the client's side stays
open and silent, and the process has time to end in a line of its own.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

Service = TypeVar("Service")
MOST_PROCESSES = 64  # for which the coordinator has threads of ours; with more, they reach it directly
LARGEST = 65_536  # bytes passed on at once
CONNECTS_WITHIN = 20.0  # seconds
NO_GRPC_PROXY, NO_PROXY = "no_grpc_proxy", "no_proxy"  # variables that gRPC reads; the first hides the second


@contextlib.contextmanager
def in_between() -> Iterator[None]:
    """Puts itself between JAX's client and coordinator, for those made in this block.

    JAX has no public setting for it; where these parts of it are not as expected, they connect directly.
    """
    try:
        from jax._src.lib import _jax

        module: Any = _jax
        client, service = module.get_distributed_runtime_client, module.get_distributed_runtime_service
    except (ImportError, AttributeError):
        yield
        return

    def client_here(address: str, process: int, *others: Any, **flags: Any) -> Any:
        return client(address if process == 0 else lifeline(address), process, *others, **flags)

    def service_here(address: str, number: int, *others: Any, **flags: Any) -> Any:
        with contextlib.suppress(OSError, ValueError):  # JAX says better what is wrong with the address
            if number <= MOST_PROCESSES:
                return behind(address, lambda inner: service(inner, number, *others, **flags))
        return service(address, number, *others, **flags)

    module.get_distributed_runtime_client, module.get_distributed_runtime_service = client_here, service_here
    try:
        yield
    finally:
        module.get_distributed_runtime_client, module.get_distributed_runtime_service = client, service


def behind(address: str, serve: Callable[[str], Service]) -> Service:
    """Listens at `address`, HOST:PORT, for a service on the loopback, which `serve` makes of its own address."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0][0]
    both = host == "::" and socket.has_dualstack_ipv6()
    with contextlib.ExitStack() as held:
        server = held.enter_context(socket.create_server((host, int(port)), family=family, dualstack_ipv6=both))
        with socket.create_server(("127.0.0.1", 0)) as unused:
            inner = f"127.0.0.1:{unused.getsockname()[1]}"
        service = serve(inner)
        held.pop_all()
    _start(_accept, server, inner)
    return service


def lifeline(address: str) -> str:
    """An address on the loopback that leads to `address`, HOST:PORT; the same if there is no loopback."""
    try:
        server = socket.create_server(("127.0.0.1", 0))
    except OSError:
        return address
    # No proxy leads to the loopback, whatever the network needs.
    direct = os.environ.get(NO_GRPC_PROXY) or os.environ.get(NO_PROXY) or ""
    os.environ[NO_GRPC_PROXY] = f"{direct},127.0.0.1".lstrip(",")
    _start(_accept, server, address)
    return f"127.0.0.1:{server.getsockname()[1]}"


def _accept(server: socket.socket, address: str) -> None:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError):
        while True:
            near, _ = server.accept()
            try:
                far = socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECTS_WITHIN)
                far.settimeout(None)
                for each in (near, far):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except (OSError, UnicodeError):
                near.close()  # JAX tries again
                continue
            for work in (_up, _down):
                _start(work, near, far)


def _up(near: socket.socket, far: socket.socket) -> None:
    """Passes on what the client sends, until it closes; what nobody takes any more is lost."""
    with near, far:
        with contextlib.suppress(OSError):
            while data := near.recv(LARGEST):
                with contextlib.suppress(OSError):
                    far.sendall(data)
        with contextlib.suppress(OSError):
            far.shutdown(socket.SHUT_RDWR)


def _down(near: socket.socket, far: socket.socket) -> None:
    """Passes on what the coordinator sends, until it closes, which the client is not told."""
    with contextlib.suppress(OSError):
        while data := far.recv(LARGEST):
            near.sendall(data)


def _start(work: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=work, args=arguments, daemon=True).start()
