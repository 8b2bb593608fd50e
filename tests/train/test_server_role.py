"""Servers of a job that stand by: their port is theirs throughout, and one that is gone or slow keeps the job going."""

from __future__ import annotations

import dataclasses
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from monolith.cluster.addresses import split_address
from monolith.cluster.liveness import ReservedPort
from monolith.errors import AbortedError, AlreadyExistsError, OpError
from monolith.ps.places import ServerPlace, assign_places, find_place, stop_servers
from monolith.ps.server.server import PsServer
from monolith.testing.distributed_binary import FeatureTask
from monolith.train.config.job_config import JobConfig
from monolith.train.roles import place as server_places
from monolith.train.roles import server as _server_role
from monolith.train.roles.place import RolePlace, ServerPlaces
from monolith.train.roles.server import run_server
from train.job_threads import MemoryDiscovery, ThreadJob

if TYPE_CHECKING:
    from pathlib import Path


ENDS_HANGS = 60.0


def place_of(discovery: MemoryDiscovery, folder: Path, index: int = 0) -> RolePlace:
    settings = JobConfig(num_redundant_ps=1, host="127.0.0.1")
    return RolePlace(
        role="ps", index=index, num_ps=1, num_workers=1, settings=settings, discovery=discovery, model_dir=str(folder)
    )


def test_the_port_of_a_server_stays_reserved_while_it_acquires_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    discovery, tried = MemoryDiscovery(), list[str]()
    make = _server_role._server

    def after_others(place: RolePlace, host: str, port: int, numbers: tuple[int, int] | None) -> PsServer:
        if numbers is not None:
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind((host, port))
            tried.append(f"{host}:{port}")
        return make(place, host, port, numbers)

    monkeypatch.setattr(_server_role, "_server", after_others)
    role = threading.Thread(target=run_server, args=[place_of(discovery, tmp_path)])
    role.start()
    assert discovery.changed.wait(ENDS_HANGS)
    address = discovery.query("ps")[0]
    assert find_place(address) == ServerPlace(address, None, 1)
    assign_places({0: address}, 1)
    assert find_place(address) == ServerPlace(address, 0, 1), "it has its place when the call returns"
    assign_places({0: address}, 1)
    assert not stop_servers([address])
    role.join(ENDS_HANGS)
    assert tried == [address]
    assert discovery.query("ps") == {}


def test_a_server_that_died_after_discovery_is_replaced_and_the_job_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_places, "_ASSIGN_SECONDS", 1.0)
    job = ThreadJob(tmp_path, params=FeatureTask.params, options={"num_redundant_ps": 1})
    with ReservedPort("127.0.0.1:0") as nobody:
        job.discovery.register("ps", 0, f"127.0.0.1:{nobody.port}")
        job.start("ps", 1)
        job.start("worker", 0)
        trainer = job.result("worker", 0)
        job.result("ps", 1)
    assert trainer is not None
    assert trainer.global_step == 5
    assert "worker 0: attempt 1 ended" in caplog.text
    assert "place 0 is taken by the server at" in caplog.text


def test_a_server_that_is_slow_to_answer_keeps_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers with one place would each have some of its rows."""
    discovery = MemoryDiscovery()
    discovery.register("ps", 0, "127.0.0.1:1")
    discovery.register("ps", 1, "127.0.0.1:2")

    def slowly(address: str, *, token: str | None, timeout_seconds: float = 2.0) -> ServerPlace | None:
        assert token is None
        is_slow = split_address(address)[1] == 1
        return None if is_slow and timeout_seconds < 5 else ServerPlace(address, 0 if is_slow else None, 1)

    monkeypatch.setattr(server_places, "find_place", slowly)
    monkeypatch.setattr(server_places, "assign_places", lambda *_, **__: pytest.fail("its place was given away"))
    assert ServerPlaces(place_of(discovery, tmp_path)).addresses() == {0: "127.0.0.1:1"}


class Role(threading.Thread):
    """A server of a job as a thread; keeps how it ended."""

    def __init__(self, place: RolePlace) -> None:
        super().__init__(daemon=True)
        self._place = place
        self.error: OpError | None = None
        self.start()

    def run(self) -> None:
        try:
            run_server(self._place)
        except OpError as error:
            self.error = error


def test_a_second_server_of_an_index_is_refused_while_the_first_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_server_role, "_TAKEN_SECONDS", 0.3)
    discovery = MemoryDiscovery()
    place = dataclasses.replace(place_of(discovery, tmp_path), settings=JobConfig(host="127.0.0.1"))
    first = Role(place)
    assert discovery.changed.wait(ENDS_HANGS)
    known = discovery.query("ps")
    with pytest.raises(AlreadyExistsError, match=rf"the process at {known[0]} has this index, and answers"):
        run_server(place)
    assert discovery.query("ps") == known
    assert not stop_servers(known.values())
    first.join(ENDS_HANGS)
    assert (first.is_alive(), first.error) == (False, None)
    discovery.register("ps", 0, known[0])  # as a server leaves it that was killed
    discovery.changed.clear()
    again = Role(place)
    assert discovery.changed.wait(ENDS_HANGS)
    assert not stop_servers(discovery.query("ps").values())
    again.join(ENDS_HANGS)
    assert (again.is_alive(), again.error) == (False, None)


@pytest.mark.slow
def test_a_server_whose_index_another_one_has_taken_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_server_role, "_LOOK_SECONDS", 0.05)
    discovery = MemoryDiscovery()
    place = dataclasses.replace(place_of(discovery, tmp_path), settings=JobConfig(host="127.0.0.1"))
    first = Role(place)
    assert discovery.changed.wait(ENDS_HANGS)
    address = discovery.query("ps")[0]
    discovery.register("ps", 0, address.replace("127.0.0.1", "localhost"))  # the same process under another name
    first.join(0.3)
    assert first.is_alive()
    with ReservedPort("127.0.0.1:0") as nobody:
        discovery.register("ps", 0, f"127.0.0.1:{nobody.port}")
        first.join(0.3)
        assert first.is_alive(), "nobody answers there"
    with PsServer(0, 1) as second:
        discovery.register("ps", 0, second.address)
        first.join(ENDS_HANGS)
        assert not first.is_alive()
        assert isinstance(first.error, AbortedError)
        assert f"the process at {second.address} has taken this index" in str(first.error)
        assert discovery.query("ps") == {0: second.address}
    assert find_place(address) is None
