"""Servers that stand by are given places, and begin anew at the same address."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from monolith.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
)
from monolith.ps import PsCluster, PsServer
from monolith.ps.places import StandbyServers
from monolith.ps.server import control_service as _control_service
from monolith.rpc.protos import parameter_server_pb2 as messages
from ports import free_port
from ps.server_fixtures import running

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


class Role:
    """A server as its process runs it: stands by, takes its place, and ends when it is told to."""

    def __init__(self, index: int, num_all: int, token: str | None = None) -> None:
        self._token = token
        self._server = PsServer(index, num_all, stands_by=True, token=token, port=free_port())
        self.address = self._server.address
        self.place: tuple[int, int] | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self._server.wait()
        self.place = self._server.assigned
        self._server.close()
        if self.place is not None:
            index, num_ps = self.place
            port = int(self.address.rpartition(":")[2])
            with PsServer(index, num_ps, port=port, token=self._token) as self._server:
                self._server.wait()

    def ended(self) -> bool:
        """Whether it ends by itself."""
        self._thread.join(30)
        return not self._thread.is_alive()

    def stop(self) -> None:
        while self._thread.is_alive():
            self._server.stop(0.0)  # again, if it was about to take its place
            self._thread.join(0.1)


@contextmanager
def standing_by(num_all: int, token: str | None = None) -> Iterator[list[Role]]:
    roles = [Role(index, num_all, token) for index in range(num_all)]
    try:
        yield roles
    finally:
        for role in roles:
            role.stop()


def test_the_chosen_take_their_places_at_their_addresses_and_the_others_leave() -> None:
    with standing_by(3, token="t") as roles, StandbyServers([r.address for r in roles], 2, token="t") as servers:  # noqa: S106 - a test's
        assert servers.chosen() is None
        assert servers.places() == {}
        chosen = [roles[2].address, roles[0].address]
        servers.give_places(chosen)
        assert servers.chosen() == chosen
        servers.give_places(chosen)  # again does no harm
        with PsCluster(chosen, token="t") as cluster:  # noqa: S106 - a test's
            assert cluster.num_ps == 2
        servers.send_away([roles[1].address])
        assert roles[1].ended()
        assert roles[1].place is None
        assert servers.places() == {0: chosen[0], 1: chosen[1]}


def test_a_server_that_stands_by_is_no_server_of_a_job() -> None:
    with standing_by(1) as (role,), pytest.raises(UnavailableError, match="stands by, and has no place"):
        PsCluster([role.address])


def test_notes_are_left_for_others_until_the_choice_is_made() -> None:
    with standing_by(2) as roles:
        addresses = [role.address for role in roles]
        with StandbyServers(addresses, 1) as one, StandbyServers(addresses, 1) as other:
            one.note("ready/0", "1")
            other.note("ready/1", "1")
            other.note("ready/1", "2")
            assert one.notes() == other.notes() == {"ready/0": "1", "ready/1": "2"}
            one.give_places([addresses[0]])
            other.note("done/1", "1")  # too late, and no error
            assert other.notes() == {"result": addresses[0]}


def test_a_server_that_has_a_place_rejects_another() -> None:
    with standing_by(2) as roles, StandbyServers([role.address for role in roles], 2) as servers:
        addresses = [role.address for role in roles]
        servers.give_places(addresses)
        with pytest.raises(FailedPreconditionError, match="cannot become index 0 of 2"):
            servers.give_places(addresses[::-1])


def test_a_server_of_another_job_is_named() -> None:
    wrong = "is index 0 of 3, expected one of 1 or one that stands by"
    with running(3) as placed, StandbyServers([placed[0].address], 1) as servers:
        with pytest.raises(FailedPreconditionError, match=wrong) as refused:
            servers.places()
        assert placed[0].address in str(refused.value)


def test_two_chiefs_do_not_give_one_server_two_places() -> None:
    with PsServer(0, 2, stands_by=True) as server, StandbyServers([server.address], 1, timeout_seconds=0.2) as servers:
        with pytest.raises(DeadlineExceededError, match="were assigned their indices and do not serve"):
            servers.give_places([server.address])  # its process does not do it
        assert server.wait(60)
        assert server.assigned == (0, 1)
        with pytest.raises(FailedPreconditionError, match="does a second chief run"):
            server._service.TakePlace(messages.TakePlaceRequest(index=1, num_ps=2))
        with pytest.raises(InvalidArgumentError, match="index must be from 0 to num_ps - 1 = 1, got 2"):
            server._service.TakePlace(messages.TakePlaceRequest(index=2, num_ps=2))


def test_notes_are_few_and_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_control_service, "_MOST_NOTES", 1)
    monkeypatch.setattr(_control_service, "_LONGEST_NOTE", 10)
    with standing_by(1) as (role,), StandbyServers([role.address], 1) as servers:
        with pytest.raises(ResourceExhaustedError, match="got one more or longer"):
            servers.note("a", "0123456789")
        servers.note("a", "1")
        with pytest.raises(ResourceExhaustedError, match="got one more or longer"):
            servers.note("b", "1")
        assert servers.notes() == {"a": "1"}


def test_no_more_servers_can_be_used_than_there_are() -> None:
    with pytest.raises(InvalidArgumentError, match="from 1 to 1 of them can be used, got num_required 2"):
        StandbyServers(["127.0.0.1:1"], 2)
