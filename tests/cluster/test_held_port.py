"""A port that stays one process's own, also while nobody listens on it."""

from __future__ import annotations

import socket

import pytest

from monolith.cluster.liveness import ReservedPort
from monolith.errors import UnavailableError

LOOPBACK = "127.0.0.1"


def test_no_other_process_is_given_a_reserved_port() -> None:
    with ReservedPort(f"{LOOPBACK}:0") as held, socket.socket() as other:
        with pytest.raises(OSError, match="in use"):
            other.bind((LOOPBACK, held.port))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((LOOPBACK, held.port))


def test_its_holder_listens_on_it_again_and_again() -> None:
    with ReservedPort(f"{LOOPBACK}:0") as held:
        for _ in range(2):
            with socket.create_server((LOOPBACK, held.port)) as server:
                with socket.create_connection((LOOPBACK, held.port)):
                    server.accept()[0].close()
                with socket.socket() as other, pytest.raises(OSError, match="in use"):
                    other.bind((LOOPBACK, held.port))


def test_it_is_free_afterwards() -> None:
    with ReservedPort(f"{LOOPBACK}:0") as held:
        pass
    held.close()
    with ReservedPort(f"{LOOPBACK}:{held.port}") as again:
        assert again.port == held.port


def test_a_port_with_a_listener_is_reported() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken, pytest.raises(UnavailableError, match="is the port taken"):
        ReservedPort(f"{LOOPBACK}:{taken.getsockname()[1]}")
