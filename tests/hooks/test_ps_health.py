"""Training stops while a parameter server is over its memory, and goes on by itself."""

from __future__ import annotations

import logging
import threading

import pytest

from failing_once import FailingOnce
from hooks.sessions import FakeSession
from monolith.cluster import BarrierOp
from monolith.errors import UnavailableError
from monolith.hooks import BarrierHook, PsHealthHook
from monolith.ps.client.cluster import ServerHealth
from monolith.testing import FakeClock, StepLoop

GIB = 1 << 30


class Servers:
    """Two servers of 4 GiB each, whose memory a test sets; None: the server is silent."""

    def __init__(self, *resident: int | None) -> None:
        self.resident: list[int | None] = list(resident)
        self.asked = threading.Semaphore(0)

    def health(self) -> list[ServerHealth | None]:
        self.asked.release()
        return [
            None if each is None else ServerHealth(index, f"10.0.0.{index}:7000", each, 4 * GIB)
            for index, each in enumerate(self.resident)
        ]


def test_workers_wait_while_a_server_is_over_its_limit_and_resume_afterwards(caplog: pytest.LogCaptureFixture) -> None:
    clock, barrier, servers = FakeClock(), BarrierOp(2), Servers(3 * GIB, 4 * GIB)
    hook = PsHealthHook(servers, barrier, clock=clock)
    assert hook.look()
    assert not barrier.is_barrier_placed()  # the limit itself is allowed

    servers.resident = [3 * GIB, 4 * GIB + 1]
    with caplog.at_level(logging.WARNING):
        assert hook.look()
    assert barrier.is_barrier_placed()
    assert barrier.enter(1) == ""
    (line,) = caplog.messages
    assert "parameter server 1 at 10.0.0.1:7000 has 4294967297 bytes in use, more than the limit of 4294967296" in line
    assert "10.0.0.0:7000" not in line
    assert hook.look()  # said once
    assert caplog.messages == [line]

    clock.advance(90)
    servers.resident = [3 * GIB, 2 * GIB]
    assert hook.look()
    assert not barrier.is_barrier_placed()
    assert "training resumes: after 90 s all parameter servers" in caplog.messages[-1]


def test_a_server_without_a_limit_has_none() -> None:
    assert not ServerHealth(0, "a:1", 1 << 60, 0).out_of_memory


def test_the_barrier_of_a_save_is_not_replaced_and_training_stops_soon_after_it() -> None:
    barrier, servers = BarrierOp(2), Servers(5 * GIB, GIB)
    hook = PsHealthHook(servers, barrier)
    barrier.place_barrier("Save")
    assert not hook.look()  # to be tried again soon
    servers.resident = [GIB, GIB]
    assert hook.look()
    assert barrier.is_barrier_placed()  # it is the saver's
    servers.resident = [5 * GIB, GIB]
    barrier.remove_barrier()
    assert hook.look()
    assert barrier.is_barrier_placed()


def test_resuming_training_without_freeing_memory_stops_it_again() -> None:
    barrier = BarrierOp(2)
    hook = PsHealthHook(Servers(5 * GIB), barrier)
    assert hook.look()
    barrier.remove_barrier()
    assert hook.look()
    assert barrier.is_barrier_placed()


def test_a_silent_server_neither_stops_nor_resumes_training(caplog: pytest.LogCaptureFixture) -> None:
    barrier, servers = BarrierOp(2), Servers(None, GIB)
    hook = PsHealthHook(servers, barrier)
    assert hook.look()
    assert not barrier.is_barrier_placed()
    assert "parameter servers [0] do not report" in caplog.text
    servers.resident = [None, 5 * GIB]
    assert hook.look()
    assert barrier.is_barrier_placed()
    servers.resident = [None, GIB]
    assert hook.look()
    assert barrier.is_barrier_placed()
    servers.resident = [GIB, GIB]
    assert hook.look()
    assert not barrier.is_barrier_placed()


def test_the_thread_polls_immediately_and_repeatedly_and_survives_failures(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Servers):
        def health(self) -> list[ServerHealth | None]:
            super().health()
            raise UnavailableError("closed")

    servers = Failing(GIB)
    with StepLoop([PsHealthHook(servers, BarrierOp(1), every_seconds=0.01)]):
        assert all(servers.asked.acquire(timeout=20) for _ in range(3))
    assert "thread ps_health failed, next in 0.01 s: UnavailableError" in caplog.text
    assert "closed" in caplog.text
    assert not [each for each in threading.enumerate() if each.name == "ps_health"]


def test_chief_and_worker_stand_still_until_memory_is_back() -> None:
    barrier, servers = BarrierOp(2), Servers(5 * GIB)
    trained: list[str] = []

    def train(name: str, loop: StepLoop) -> None:
        with loop:
            for _ in range(3):
                loop.run(lambda: trained.append(name))

    chief = StepLoop([PsHealthHook(servers, barrier, every_seconds=0.01)])
    worker = StepLoop([BarrierHook(1, barrier)])
    threads = [
        threading.Thread(target=train, args=("chief", chief)),
        threading.Thread(target=train, args=("worker", worker)),
    ]
    threads[0].start()
    for _ in range(3):
        assert servers.asked.acquire(timeout=20)
    threads[1].start()
    for _ in range(3):
        assert servers.asked.acquire(timeout=20)
    assert trained == []
    servers.resident = [GIB]
    for thread in threads:
        thread.join(30)
    assert sorted(trained) == ["chief"] * 3 + ["worker"] * 3


def test_a_stop_ends_the_wait_of_the_chief_and_the_barrier_goes_with_its_session() -> None:
    barrier, session = BarrierOp(1), FakeSession()
    hook = PsHealthHook(Servers(5 * GIB), barrier)
    assert hook.look()
    session.request_stop()
    hook.after_create_session(session)
    hook.before_run(session.context())
    session.close()
    assert not barrier.is_barrier_placed()


def test_where_another_hook_keeps_the_chief_back_this_one_does_not() -> None:
    hook = PsHealthHook(Servers(5 * GIB), BarrierOp(1), pauses_chief=False)
    assert hook.look()
    hook.before_run(FakeSession().context())


def test_every_thirty_seconds_by_default() -> None:
    assert PsHealthHook(Servers(), BarrierOp(1))._every_seconds == 30
    with pytest.raises(ValueError, match="every_seconds must be > 0, got 0"):
        PsHealthHook(Servers(), BarrierOp(1), every_seconds=0)


def test_the_thread_survives_unexpected_errors() -> None:
    servers = Servers(GIB)
    health = FailingOnce(servers.health, thread="ps_health")
    servers.health = health  # type: ignore[method-assign]
    with StepLoop([PsHealthHook(servers, BarrierOp(1), every_seconds=0.01)]):
        health.require_survived()
