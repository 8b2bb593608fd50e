"""What a job meets outside of the laboratory: each is noticed, named and survived, within a stated time.

What is tested where it lives: a wrong number of servers, two of one index, a taken port, another version, garbage at
the control (`tests/ps/test_cluster.py`); garbage, other versions and other tables at the frames, peers that hang
half-way (`tests/ps/test_bad_peers.py`); a full disk at a save (`tests/ps/test_server_processes.py`) and anywhere in a
model directory (`test_failing_disk.py`); two processes of one number (`tests/job/test_job.py`); a network that is cut,
and processes that are killed or stopped (`test_cluster_faults.py`).
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch

from contracts.one_worker import ONE_TABLE, Worker, rows_of, rule
from monolith.errors import DeadlineExceededError, FailedPreconditionError, OpError
from monolith.ps import JobClient, PsCluster, PsServer, PsStore
from monolith.testing import FakeClock, create_test_ps_cluster
from monolith.train.roles.server_watch import ServerReconnector
from ps.server_fixtures import running, store_of

ENDS_HANGS = 60.0


# Discovery that is down, flaps, or says what was true before


class Discovery:
    """Says what a script says, one answer for each question; the last one stays."""

    def __init__(self, *answers: Mapping[int, str] | Exception) -> None:
        self._answers = list(answers)
        self.asked = 0

    def __call__(self) -> Mapping[int, str]:
        answer = self._answers[min(self.asked, len(self._answers) - 1)]
        self.asked += 1
        if isinstance(answer, Exception):
            raise answer
        return answer


@contextmanager
def moved_server() -> Iterator[tuple[PsCluster, PsServer, str]]:
    """A client whose second server has gone, the server that came for it, and the address of the old one."""
    with ExitStack() as ended:
        first = ended.enter_context(PsServer(0, 2))
        old = PsServer(1, 2)
        try:
            cluster = ended.enter_context(PsCluster([first.address, old.address], timeout_seconds=10))
        finally:
            old.close(0)
        yield cluster, ended.enter_context(PsServer(1, 2)), old.address


def test_a_failing_discovery_is_retried_until_it_answers(caplog: pytest.LogCaptureFixture) -> None:
    with moved_server() as (cluster, new, _):
        discovery = Discovery(ConnectionRefusedError("zookeeper is away"), TimeoutError("no answer"), {1: new.address})
        ServerReconnector(cluster, discovery, clock=FakeClock()).wait(60)
        assert cluster.addresses[1] == new.address
        assert discovery.asked == 3
    assert "discovery failed to return the addresses of parameter servers: zookeeper is away" in caplog.text


def test_entries_that_appear_and_disappear_are_polled_again() -> None:
    with moved_server() as (cluster, new, old):
        discovery = Discovery({}, {0: cluster.addresses[0]}, {0: cluster.addresses[0], 1: old}, {}, {1: new.address})
        ServerReconnector(cluster, discovery, clock=FakeClock()).wait(60)
        assert cluster.addresses[1] == new.address


@pytest.mark.slow
def test_an_old_address_is_rejected_whatever_process_has_it_now() -> None:
    with (
        moved_server() as (cluster, new, old),
        PsServer(0, 2) as other_index,
        PsServer(1, 3) as other_size,
        silent_listener() as silent,
    ):
        stale = [old, other_index.address, other_size.address, silent]
        discovery = Discovery(*({1: address} for address in stale), {1: new.address})
        ServerReconnector(cluster, discovery, clock=FakeClock()).wait(60)
        assert cluster.addresses[1] == new.address
        assert discovery.asked == len(stale) + 1


def test_a_wait_for_servers_names_the_missing_ones_when_it_times_out() -> None:
    with moved_server() as (cluster, _, old):
        clock = FakeClock()
        begin = clock.monotonic()
        with pytest.raises(DeadlineExceededError, match=r"parameter servers \[1\] did not answer for 30 s; start them"):
            ServerReconnector(cluster, Discovery({1: old}), clock=clock).wait(30)
        assert clock.monotonic() - begin < 31


@contextmanager
def silent_listener() -> Iterator[str]:
    """Takes connections and says nothing: half of a connection, or another program."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


# Servers


def test_a_silent_address_times_out_at_the_limit() -> None:
    with silent_listener() as address:
        begin = time.monotonic()
        with pytest.raises(OpError, match=address):
            PsCluster([address], timeout_seconds=0.5)
        assert time.monotonic() - begin < ENDS_HANGS


@pytest.mark.slow
@pytest.mark.usefixtures("forked_starts")
def test_a_slow_server_costs_the_stated_time_and_what_it_was_sent_counts_once() -> None:
    with create_test_ps_cluster(2) as (servers, config), config.connect(timeout_seconds=8.0) as cluster:
        store = PsStore(ONE_TABLE, servers=cluster)
        worker = Worker(store)
        worker.train([1, 2, 3])
        servers[1].pause()
        plan = worker.plan([1, 2, 3], 1)
        with pytest.raises(DeadlineExceededError):
            worker.session.apply([(plan, torch.ones(plan.num_values))], rule(0)).result()
        servers[1].resume()
        again = Worker(store)  # behind what all servers have
        assert again.last in (0, 1)
        if again.last == 0:
            again.train([1, 2, 3])
        assert rows_of(store, [1, 2, 3]) == [[-2.0, -2.0]] * 3
        store.close()


def test_a_server_that_has_rows_of_another_model_reports_how_they_differ() -> None:
    with running(2) as servers, store_of(servers) as store:
        Worker(store).train([1])
        other = {**ONE_TABLE, "item": ONE_TABLE["user"]}
        with pytest.raises(FailedPreconditionError, match=r"tables\.item: nothing here"):
            PsStore(other, servers=store.cluster)


# Members of a job


@contextmanager
def member(server: PsServer, index: int, *, lease_seconds: float = 10.0) -> Iterator[JobClient]:
    with (
        PsCluster([server.address], timeout_seconds=ENDS_HANGS) as cluster,
        JobClient(cluster, role="worker", index=index, num_workers=2, lease_seconds=lease_seconds) as client,
    ):
        yield client


@pytest.mark.slow
def test_a_worker_that_reads_for_an_hour_keeps_its_place() -> None:
    """Its lease is renewed beside the thread that reads, however long that takes."""
    with PsServer(0, 1) as server, member(server, 0) as chief, member(server, 1, lease_seconds=4.0):
        assert chief.wait_for(lambda state: len(state.members) == 2, timeout_seconds=ENDS_HANGS)
        lost = chief.wait_for(lambda state: 1 in state.lost or len(state.members) < 2, timeout_seconds=7.0)
        assert not lost


def test_a_job_keeps_running_under_garbage_on_every_port() -> None:
    with PsServer(0, 1) as server, store_of([server]) as store, member(server, 0) as chief:
        stop = threading.Event()
        ports = [int(address.rpartition(":")[2]) for address in (server.address, server.frame_address)]
        throwers = [threading.Thread(target=throw_garbage, args=(port, stop)) for port in ports]
        for thrower in throwers:
            thrower.start()
        try:
            worker = Worker(store)
            for number in range(20):
                worker.train([1])
                chief.set_step_offset(number)
            assert chief.wait_for(lambda state: state.step_offset == 19, timeout_seconds=ENDS_HANGS)
            with member(server, 1) as other:
                assert other.wait_for(lambda state: state.step_offset == 19, timeout_seconds=ENDS_HANGS)
        finally:
            stop.set()
            for thrower in throwers:
                thrower.join()
        assert rows_of(store, [1]) == [[-20.0, -20.0]]
        assert server.steps() == 20


def throw_garbage(port: int, stop: threading.Event) -> None:
    pieces = (b"\x00" * 100, b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 10_000, b"MMLF" + b"\x01" * 60, b"PRI * HTTP/2.0\r\n")
    number = 0
    while not stop.is_set():
        number += 1
        with socket.create_connection(("127.0.0.1", port), 10) as sender:
            try:
                sender.settimeout(0.05)
                sender.sendall(pieces[number % len(pieces)])
                sender.recv(4096)
            except OSError:
                continue  # it hung up, or waits for more


@pytest.mark.parametrize("room", ["cluster", "ps", "ps/recovery", "launch", "train"])
def test_no_wait_of_a_job_goes_by_a_clock_that_jumps(project_root: Path, room: str) -> None:
    """Deadlines, leases and restarts go by a clock that only moves forward; times of day are for people and data."""
    sources = list((project_root / "src" / "monolith" / room).glob("*.py"))
    assert sources
    found = [path.name for path in sources if "time.time()" in path.read_text(encoding="utf-8")]
    assert found == []
