"""A port that says that a process is there."""

from __future__ import annotations

import errno
import socket

import pytest

from monolith.cluster import NodeAliveChecker, liveness
from monolith.cluster.liveness import LivenessPort
from monolith.errors import UnavailableError


def test_a_checker_finds_the_port_while_it_is_open() -> None:
    with LivenessPort("127.0.0.1:0") as port:
        assert NodeAliveChecker({port.address}, timeout=10.0).all_nodes_alive()
    assert not NodeAliveChecker({port.address}, timeout=0.1).all_nodes_alive()


def test_its_address_is_one_that_others_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "get_local_ip", lambda: "127.0.0.1")
    with LivenessPort("0.0.0.0:0") as port:
        assert port.address.startswith("127.0.0.1:")
        assert NodeAliveChecker({port.address}, timeout=10.0).all_nodes_alive()


def test_the_port_survives_an_error_that_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    accept, errors = socket.socket.accept, [OSError(errno.EMFILE, "Too many open files")]

    def accept_later(listening: socket.socket) -> tuple[socket.socket, object]:
        if errors:
            raise errors.pop()
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", accept_later)
    with LivenessPort("127.0.0.1:0") as port:
        host, number = port.address.split(":")
        with socket.create_connection((host, int(number)), timeout=10.0) as visitor:
            assert visitor.recv(1) == b""  # accepted, and closed


def test_a_port_in_use_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UnavailableError, match="is the port taken"):
        LivenessPort(f"127.0.0.1:{taken.getsockname()[1]}")
