"""The connection to the coordinator: it passes everything on, and stays open when the coordinator is gone."""

import socket

import pytest

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


def test_no_proxy_is_asked_for_the_loopback(monkeypatch, server):
    monkeypatch.setenv("no_proxy", "10.0.0.1")
    monkeypatch.delenv("no_grpc_proxy", raising=False)
    lifeline.lifeline(of(server))
    assert lifeline.os.environ["no_grpc_proxy"] == "10.0.0.1,127.0.0.1"
