"""Servers that come back elsewhere are followed while the thread that trains waits for something else."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack

import pytest

from failing_once import FailingOnce
from monolith.clock import SystemClock
from monolith.ps import JobClient, PsCluster, PsServer
from monolith.stop_request import StopRequest
from monolith.train.roles import server_watch
from monolith.train.roles.server_watch import ServerReconnector, ServerWatch

ENDS_HANGS = 60.0


class Follower:
    """Hears which server has moved."""

    def __init__(self, cluster: PsCluster) -> None:
        self.moved: list[int] = []
        self.has_moved = threading.Event()
        cluster.on_move(self._hear)

    def _hear(self, index: int) -> None:
        self.moved.append(index)
        self.has_moved.set()


def test_a_server_is_found_again_without_any_calls_to_it() -> None:
    with ExitStack() as ended:
        first, old = ended.enter_context(PsServer(0, 2)), PsServer(1, 2)
        cluster = ended.enter_context(PsCluster([first.address, old.address]))
        addresses: dict[int, str] = {}

        def known() -> Mapping[int, str]:
            return addresses

        follower = Follower(cluster)
        ended.enter_context(ServerWatch(cluster, ServerReconnector(cluster, known, clock=SystemClock()), StopRequest()))
        for _ in range(2):  # it listens on after the first loss
            old.close(0)
            old = ended.enter_context(PsServer(1, 2))
            addresses[1] = old.address
            assert follower.has_moved.wait(ENDS_HANGS)
            follower.has_moved.clear()
            assert cluster.addresses[1] == old.address
        assert follower.moved == [1, 1]


class EndsBetween(ServerReconnector):
    """All servers are there when it looks for the first time, and one of them is gone right after."""

    def __init__(self, cluster: PsCluster, server: PsServer, addresses: dict[int, str]) -> None:
        super().__init__(cluster, lambda: addresses, clock=SystemClock())
        self.server = server
        self.has_looked = False
        self.is_gone = threading.Event()
        cluster.on_loss(self._hear)

    def look(self) -> list[int]:
        """As it is asked to."""
        if self.has_looked:
            return super().look()
        self.has_looked = True
        self.server.close(0)
        assert self.is_gone.wait(ENDS_HANGS)
        return []

    def _hear(self) -> None:
        self.is_gone.set()


@pytest.mark.slow
def test_a_server_that_goes_between_two_looks_is_not_waited_for() -> None:
    with ExitStack() as ended:
        old = PsServer(0, 1)
        cluster = ended.enter_context(PsCluster([old.address], timeout_seconds=10 * ENDS_HANGS))
        addresses = {0: ended.enter_context(PsServer(0, 1)).address}
        follower = Follower(cluster)
        watch = ended.enter_context(ServerWatch(cluster, EndsBetween(cluster, old, addresses), StopRequest()))
        watch._thread.wake()
        assert follower.has_moved.wait(ENDS_HANGS)
        assert cluster.addresses[0] == addresses[0]


def test_a_client_waiting_on_the_home_server_is_notified_from_its_new_address() -> None:
    with ExitStack() as ended:
        old = PsServer(0, 1)
        cluster = ended.enter_context(PsCluster([old.address]))
        addresses: dict[int, str] = {}
        ended.enter_context(
            ServerWatch(cluster, ServerReconnector(cluster, lambda: addresses, clock=SystemClock()), StopRequest())
        )
        chief = ended.enter_context(JobClient(cluster, role="worker", index=0, num_workers=1))
        incarnation = chief.state.incarnation
        old.close(0)
        addresses[0] = ended.enter_context(PsServer(0, 1)).address
        assert chief.wait_for(lambda state: state.incarnation != incarnation, timeout_seconds=ENDS_HANGS)


def test_an_error_of_a_look_does_not_end_the_watch() -> None:
    with ExitStack() as ended:
        server = ended.enter_context(PsServer(0, 1))
        cluster = ended.enter_context(PsCluster([server.address]))
        back = ServerReconnector(cluster, dict, clock=SystemClock())
        look = FailingOnce(back.look, thread="job/servers")
        back.look = look  # type: ignore[method-assign]
        watch = ended.enter_context(ServerWatch(cluster, back, StopRequest()))
        watch._thread.wake()
        look.require_survived()


def test_a_watch_whose_looks_fail_closes_the_cluster_after_a_stop_request_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_watch, "GIVE_UP_SECONDS", 0.0)
    with ExitStack() as ended:
        server = ended.enter_context(PsServer(0, 1))
        cluster = ended.enter_context(PsCluster([server.address]))
        back = ServerReconnector(cluster, dict, clock=SystemClock())

        def look() -> list[int]:
            raise ZeroDivisionError("a bug")

        back.look = look  # type: ignore[method-assign]
        stop = StopRequest()
        watch = ended.enter_context(ServerWatch(cluster, back, stop))
        stop.set()
        watch._thread.wake()
        watch._thread.join(ENDS_HANGS)
        assert cluster.is_closed
