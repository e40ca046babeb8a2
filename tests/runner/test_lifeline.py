"""The connection to the coordinator: it passes everything on, and stays open when the coordinator is gone."""

import socket

import pytest
from jax._src.lib import _jax

from rscfed_jax.runner import lifeline


@pytest.fixture
def server():
    """Somebody who listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(60)
        yield listening


def connect(address):
    host, port = address.split(":")
    near = socket.create_connection((host, int(port)), timeout=60)
    near.settimeout(60)
    return near


def of(server):
    return f"127.0.0.1:{server.getsockname()[1]}"


def receive(source, number):
    data = b""
    while len(data) < number and (more := source.recv(number - len(data))):
        data += more
    return data


def test_everything_is_passed_on_both_ways(server):
    with connect(lifeline.lifeline(of(server))) as near:
        far, _ = server.accept()
        with far:
            for source, sink in ((near, far), (far, near)):
                data = bytes(range(256)) * 4096
                source.sendall(data[:1000])
                assert receive(sink, 1000) == data[:1000]
                source.sendall(data[1000:200_000])
                assert receive(sink, 199_000) == data[1000:200_000]


def test_the_connection_stays_open_when_the_coordinator_is_gone(server):
    with connect(lifeline.lifeline(of(server))) as near:
        far, _ = server.accept()
        far.sendall(b"last")
        far.close()
        assert receive(near, 4) == b"last"
        for _ in range(3):
            near.sendall(b"is anybody there?")
            near.settimeout(0.2)
            with pytest.raises(TimeoutError):
                near.recv(1)


def test_the_coordinator_learns_that_the_process_has_closed(server):
    near = connect(lifeline.lifeline(of(server)))
    far, _ = server.accept()
    with far:
        far.settimeout(60)
        near.close()
        assert far.recv(1) == b""


def test_a_coordinator_that_does_not_listen_refuses(server):
    address = of(server)
    server.close()
    with connect(lifeline.lifeline(address)) as near:
        assert near.recv(1) == b""


def served(address):
    host, port = address.split(":")
    return socket.create_server((host, int(port)))


def test_a_service_on_the_loopback_is_reached_at_its_address():
    with socket.create_server(("127.0.0.1", 0)) as unused:
        address = of(unused)
    with lifeline.behind(address, served) as service, connect(address) as near:
        assert of(service) != address
        far, _ = service.accept()
        with far:
            near.sendall(b"asked")
            assert receive(far, 5) == b"asked"
            far.sendall(b"told")
            assert receive(near, 4) == b"told"


@pytest.mark.parametrize(("number", "passed"), [(2, True), (lifeline.MOST_PROCESSES + 1, False)])
def test_the_coordinator_is_behind_the_loopback_unless_there_are_many_processes(monkeypatch, number, passed):
    """JAX's own gives up a connection between hosts after 20 s without an answer."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        address = of(unused)
    monkeypatch.setattr(_jax, "get_distributed_runtime_service", lambda at, number, **flags: (at, number, flags))
    own = _jax.get_distributed_runtime_service
    with lifeline.in_between():
        at, *others = _jax.get_distributed_runtime_service(address, number, heartbeat_timeout=3)
    assert others == [number, {"heartbeat_timeout": 3}]
    assert at.startswith("127.0.0.1:")
    assert (at != address) is passed
    assert _jax.get_distributed_runtime_service is own


def test_an_address_that_is_taken_serves_nobody(server):
    with pytest.raises(OSError, match="in use"):
        lifeline.behind(of(server), lambda inner: pytest.fail("served"))


def test_no_proxy_is_asked_for_the_loopback(monkeypatch, server):
    monkeypatch.setenv("no_proxy", "10.0.0.1")
    monkeypatch.delenv("no_grpc_proxy", raising=False)
    lifeline.lifeline(of(server))
    assert lifeline.os.environ["no_grpc_proxy"] == "10.0.0.1,127.0.0.1"
