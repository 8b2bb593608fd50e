"""A job of several members over a real home server: what one says, all hear at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest

from failing_once import FailingOnce
from monolith.cluster import BarrierAlreadyPlacedError
from monolith.errors import (
    AbortedError,
    AlreadyExistsError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
)
from monolith.job.coordination import Coordinator
from monolith.job.coordinator_connection import CoordinatorConnection
from monolith.job.coordinator_service import CoordinatorService
from monolith.job.state import JobState
from monolith.ps import JobClient, PsCluster, PsServer
from monolith.rpc.protos.coordinator_pb2 import JoinRequest, RenewRequest, Seat

PATIENCE_SECONDS = 30.0


class Job:
    """Members that end with the test."""

    def __init__(self, ended: ExitStack) -> None:
        self._ended = ended
        self.server = ended.enter_context(PsServer(0, num_ps=1))

    def cluster(self) -> PsCluster:
        """A connection of its own, as every process has."""
        return self._ended.enter_context(PsCluster([self.server.address], timeout_seconds=PATIENCE_SECONDS))

    def join(
        self, index: int, *, num_workers: int = 2, lease_seconds: float = 10.0, cluster: PsCluster | None = None
    ) -> JobClient:
        """A worker."""
        return self._ended.enter_context(
            JobClient(
                cluster or self.cluster(),
                role="worker",
                index=index,
                num_workers=num_workers,
                address=f"host{index}:1",
                lease_seconds=lease_seconds,
            )
        )


@pytest.fixture
def job() -> Iterator[Job]:
    with ExitStack() as ended:
        yield Job(ended)


def hears(member: JobClient, state: object) -> bool:
    """Whether a member hears it before patience ends."""
    assert callable(state)
    return member.wait_for(state, timeout_seconds=PATIENCE_SECONDS)


def test_all_members_receive_what_one_member_reports(job: Job) -> None:
    chief, worker = job.join(0), job.join(1)
    chief.flags.set(0, True)
    worker.flags.set(1, True)
    chief.set_step_offset(70)
    worker.report_lost(1, 3, range(10, 15))
    worker.report_lost(1, 3, range(13, 17))  # two of them are told again, as after an answer that was lost
    worker.request_stop()
    for each in (chief, worker):
        assert hears(each, lambda state: state.stop_requested)
        state = each.state
        assert [(who.role, who.index, who.address, who.incarnation) for who in state.members] == [
            ("worker", 0, "host0:1", 1),
            ("worker", 1, "host1:1", 1),
        ]
        assert (state.restored, state.num_workers, state.global_step) == (True, 2, 70)
        assert each.flags.read() == [True, True]
        assert dict(state.lost_updates) == {(1, 3): 7}


def test_a_home_server_that_moves_just_before_a_call_is_called_at_its_new_address(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = job.cluster()
    worker = job.join(0, cluster=cluster)
    channel, here = cluster.channel, threading.get_ident()
    moves = iter([job.server.address])

    def chosen(index: int) -> object:
        found = channel(index)
        if threading.get_ident() == here and (address := next(moves, None)) is not None:
            cluster.move(0, address)
        return found

    monkeypatch.setattr(cluster, "channel", chosen)
    worker.request_stop()
    assert next(moves, None) is None
    assert worker.state.stop_requested


def test_a_member_sees_its_own_change_immediately(job: Job) -> None:
    chief = job.join(0)
    for number in range(50):
        chief.set_step_offset(number)
        assert chief.state.step_offset == number
        chief.flags.set(0, number % 2 == 0)
        assert chief.flags.read() == [number % 2 == 0, False]


def test_a_wait_ends_with_the_change_and_not_with_a_look(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flip of the barrier is milliseconds; with looks once a second the median would be half a second."""
    hour = 3600.0
    monkeypatch.setattr("monolith.job.coordinator_service._LOOK_SECONDS", hour)
    chief, worker = job.join(0, lease_seconds=hour), job.join(1, lease_seconds=hour)
    took = []
    for number in range(1, 21):
        begun = time.monotonic()
        chief.set_step_offset(number)
        assert hears(worker, lambda state, number=number: state.step_offset == number)
        took.append(time.monotonic() - begun)
    assert sorted(took)[len(took) // 2] < 0.3


def test_the_barrier_of_processes_is_a_barrier(job: Job) -> None:
    chief, worker = job.join(0), job.join(1)
    chief.flags.set(0, True)
    worker.flags.set(1, True)
    seen: list[str] = []
    chief.barrier.add_callback(seen.append)
    assert (chief.barrier.capacity, chief.barrier.get_unblocked_indices()) == (2, [0, 1])
    chief.barrier.place_barrier("Save")
    assert seen == ["Save"]
    with pytest.raises(BarrierAlreadyPlacedError, match=r"placed already \(action 'Save'\)"):
        worker.barrier.place_barrier("Stop")
    assert chief.barrier.wait_blocked(0.01) == [1]
    assert hears(worker, lambda state: state.barrier_placed)
    told = threading.Event()
    worker.barrier.on_change(told.set)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(chief.barrier.wait_blocked, PATIENCE_SECONDS)
        assert worker.barrier.enter(1) == "Save"
        assert waiting.result() == []
        assert (chief.barrier.get_blocked_indices(), chief.barrier.get_unblocked_indices()) == ([0, 1], [])
        removed = pool.submit(worker.barrier.wait_removed, PATIENCE_SECONDS)
        chief.barrier.remove_barrier()
        assert removed.result()
    assert told.wait(PATIENCE_SECONDS)
    worker.barrier.leave(1)
    assert hears(chief, lambda state: not state.blocked)
    with pytest.raises(InvalidArgumentError, match="worker 1 speaks for itself, got index 0"):
        worker.barrier.enter(0)


def test_a_barrier_that_is_placed_while_the_home_server_restarts_is_the_callers_own(job: Job) -> None:
    cluster = job.cluster()
    chief = job.join(0, cluster=cluster)
    with ExitStack() as ended:
        with chief._line._speaking:  # or a thread of the line announces the chief before it places the barrier
            job.server.close(0)
            again = ended.enter_context(PsServer(0, num_ps=1))
            cluster.move(0, again.address)
            chief.barrier.place_barrier("Save")
        assert chief.state.barrier_action == "Save"
        chief.barrier.remove_barrier()
        assert not chief.state.barrier_placed
        with chief._line._speaking:
            again.close(0)
            cluster.timeout_seconds = 0.1
            with pytest.raises(DeadlineExceededError):
                chief.barrier.place_barrier("Save")
        cluster.timeout_seconds = PATIENCE_SECONDS
        incarnation = chief.state.incarnation
        cluster.move(0, ended.enter_context(PsServer(0, num_ps=1)).address)
        assert hears(chief, lambda state: state.incarnation != incarnation)
        assert not chief.state.barrier_placed, "a barrier that could not be placed must not appear later"


def test_a_save_does_not_wait_for_workers_that_do_not_train(job: Job) -> None:
    chief, worker = job.join(0, num_workers=4), job.join(2, num_workers=4)
    worker.flags.set(2, True)
    chief.barrier.place_barrier("Save")
    begun = time.monotonic()
    assert chief.barrier.wait_blocked(PATIENCE_SECONDS) == [], "nobody trains before the model is restored"
    chief.flags.set(0, True)
    assert chief.barrier.wait_blocked(0.01) == [2]
    worker.close()
    assert chief.barrier.wait_blocked(PATIENCE_SECONDS) == []
    assert time.monotonic() - begun < PATIENCE_SECONDS


def test_a_duplicate_index_is_rejected_and_its_holder_named(job: Job) -> None:
    job.join(0, lease_seconds=1.0)
    with pytest.raises(AlreadyExistsError, match=r"worker 0 is the process at host0:1, which renewed .* s ago; start"):
        job.join(0)


def test_a_place_is_free_when_its_process_has_left(job: Job) -> None:
    job.join(1).close()
    again = job.join(1)
    assert again.state.members[0].incarnation == 2


def test_others_of_another_size_are_refused(job: Job) -> None:
    chief = job.join(0, num_workers=2)
    with pytest.raises(FailedPreconditionError, match=r"worker 2 was started for 3 workers, and worker 0 for 2"):
        job.join(2, num_workers=3)
    with pytest.raises(InvalidArgumentError, match=r"must be in \[0, 2\), got 2"):
        job.join(2, num_workers=2)
    chief.close()
    assert job.join(2, num_workers=3).state.num_workers == 3


def test_a_waiting_thread_wakes_when_its_wait_is_cancelled(job: Job) -> None:
    chief = job.join(0)
    stop = threading.Event()
    stop.set()
    assert not chief.wait_for(lambda state: state.restored, timeout_seconds=None, give_up=stop.is_set)
    assert not chief.wait_for(lambda state: state.restored, timeout_seconds=0.01)


def test_a_replaced_member_gets_an_error(job: Job) -> None:
    """As after SIGSTOP for longer than the lease: another process has the number by then."""
    cluster = job.cluster()
    before = job.join(1, cluster=cluster)
    assert job.server.coordinator is not None
    members = job.server.coordinator._coordinator._members
    members._members["worker", 1].lease_seconds = 0.0  # it is over
    after = job.join(1)
    assert after.state.members[0].incarnation == 2
    with pytest.raises(AbortedError, match=r"worker 1 is .*incarnation 2"):
        before.wait_for(lambda _: False, timeout_seconds=PATIENCE_SECONDS)
    for call in (before.finish, before.require_connected, before.request_stop):
        with pytest.raises(AbortedError):
            call()
    assert not before.is_connected
    assert not after.state.finished


def test_a_job_of_a_closed_client_raises(job: Job) -> None:
    chief = job.join(0)
    chief.close()
    chief.close()
    with pytest.raises(FailedPreconditionError, match="worker 0 has left it; make another JobClient"):
        chief.finish()


def test_a_stop_is_discarded_with_the_last_worker(job: Job) -> None:
    chief = job.join(0)
    chief.request_stop()
    assert chief.state.stop_requested
    chief.close()
    assert not job.join(0).state.stop_requested


def test_a_state_before_anything_was_received_is_empty() -> None:
    state = JobState()
    assert (state.global_step, state.blocked, state.awaited, state.member("worker", 0)) == (
        0,
        frozenset(),
        frozenset(),
        None,
    )


@pytest.mark.parametrize(("name", "method"), [("job-lease", "_ask_home"), ("job-news", "_take_news")])
def test_the_threads_of_a_member_survive_errors(
    job: Job, monkeypatch: pytest.MonkeyPatch, name: str, method: str
) -> None:
    called = FailingOnce(getattr(CoordinatorConnection, method), thread=name)
    monkeypatch.setattr(CoordinatorConnection, method, called)
    chief, worker = job.join(0), job.join(1)
    called.require_survived()
    chief.set_step_offset(7)
    assert hears(worker, lambda state: state.step_offset == 7)


def test_the_thread_of_the_coordinator_survives_errors() -> None:
    steps = FailingOnce(lambda: 0, thread="job-coordinator")
    with closing(CoordinatorService(steps=steps, clocks=dict)) as service:
        service.Join(join_request())
        steps.require_survived()


def test_leases_expire_although_steps_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def steps() -> int:
        raise ZeroDivisionError("a bug")

    lost = threading.Event()
    monkeypatch.setattr(Coordinator, "_forget_barrier_of", lambda *_: lost.set())
    with closing(CoordinatorService(steps=steps, clocks=dict)) as service:
        service.Join(join_request(lease_seconds=0.5))
        service.Renew(RenewRequest(seat=join_request().seat))
        assert lost.wait(PATIENCE_SECONDS)


def join_request(*, lease_seconds: float = 10.0) -> JoinRequest:
    seat = Seat(role="worker", index=0, token=1)
    return JoinRequest(seat=seat, num_workers=1, address="host:1", lease_seconds=lease_seconds)
