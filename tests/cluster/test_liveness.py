"""Who listens and who does not."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator

import pytest

from monolith.cluster.addresses import concat_ip_and_port
from monolith.cluster.liveness import NodeAliveChecker, check_port
from monolith.testing import FakeClock
from ports import free_port


class Connection:
    """What `socket.create_connection` returns, as far as the checks use it."""

    def close(self) -> None:
        pass


@pytest.fixture
def listener() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield concat_ip_and_port(*server.getsockname()[:2])


@pytest.fixture
def closed_port() -> str:
    return concat_ip_and_port("127.0.0.1", free_port())


def test_nodes_that_take_too_long_are_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    addrs = [f"localhost:{port}" for port in range(1, 6)]
    slow = {("localhost", 2), ("localhost", 5)}
    timeouts: list[float] = []

    def connect(address: tuple[str, int], timeout: float) -> Connection:
        timeouts.append(timeout)
        if address in slow:
            raise TimeoutError("timed out")
        return Connection()

    monkeypatch.setattr(socket, "create_connection", connect)
    checker = NodeAliveChecker(addrs, timeout=0.5)
    assert checker.get_addrs() == addrs
    assert checker.get_dead_nodes() == ["localhost:2", "localhost:5"]
    assert checker.get_alive_nodes() == ["localhost:1", "localhost:3", "localhost:4"]
    assert not checker.all_nodes_alive()
    assert timeouts == [0.5] * 5


def test_real_sockets_show_which_nodes_listen(
    listener: str, closed_port: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        checker = NodeAliveChecker([listener, closed_port, listener, "nonsense"])
    assert checker.get_alive_nodes() == [listener]
    assert checker.get_dead_nodes() == sorted([closed_port, "nonsense"])
    assert f"cannot connect to {closed_port}, because " in caplog.text


def test_an_ipv6_node_is_reached_in_brackets() -> None:
    try:
        server = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with server:
        assert NodeAliveChecker([concat_ip_and_port(*server.getsockname()[:2])]).all_nodes_alive()


def test_no_nodes_are_all_alive() -> None:
    checker = NodeAliveChecker([])
    assert checker.all_nodes_alive()
    assert checker.get_alive_nodes() == checker.get_dead_nodes() == checker.get_addrs() == []


@pytest.mark.parametrize(("num_thread", "num_nodes", "at_once"), [(1, 3, 1), (3, 3, 3), (4, 9, 4)])
def test_nodes_are_tried_concurrently_up_to_the_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, num_thread: int, num_nodes: int, at_once: int
) -> None:
    # Connections wait for each other in groups: with fewer threads than the group the barrier would break, and the
    # nodes of a broken barrier count as dead.
    together = threading.Barrier(at_once)
    lock = threading.Lock()
    now, peak, left = 0, 0, num_nodes

    def connect(address: tuple[str, int], timeout: float) -> Connection:
        nonlocal now, peak, left
        with lock:
            now, left, peak = now + 1, left - 1, max(peak, now + 1)
            waits = left >= num_nodes % at_once
        if waits:
            try:
                together.wait(10)
            except threading.BrokenBarrierError as err:
                raise ConnectionRefusedError from err
        with lock:
            now -= 1
        return Connection()

    monkeypatch.setattr(socket, "create_connection", connect)
    checker = NodeAliveChecker([f"host:{port}" for port in range(num_nodes)], num_thread=num_thread)
    assert checker.all_nodes_alive()
    assert peak == at_once


def test_no_threads_are_refused() -> None:
    with pytest.raises(ValueError, match="num_thread must be >= 1, got 0"):
        NodeAliveChecker(["host:1"], num_thread=0)


def test_a_port_is_tried_until_it_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    opens_at = 7.5

    def connect(address: tuple[str, int], timeout: float) -> Connection:
        if clock.monotonic() < opens_at:
            raise ConnectionRefusedError
        return Connection()

    monkeypatch.setattr(socket, "create_connection", connect)
    assert not check_port("host", 1, timeout=7.0, clock=clock)
    assert clock.monotonic() == 7.0
    assert check_port("host", 1, timeout=100.0, clock=clock)
    assert clock.monotonic() == 8.0


def test_a_port_without_patience_is_tried_once(listener: str, closed_port: str) -> None:
    assert check_port("127.0.0.1", int(listener.rpartition(":")[2]))
    clock = FakeClock()
    assert not check_port("127.0.0.1", int(closed_port.rpartition(":")[2]), clock=clock)
    assert clock.monotonic() == 0
