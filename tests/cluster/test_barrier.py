"""The barrier: who waits where, and that it always ends."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from monolith.cluster import BarrierAlreadyPlacedError, BarrierOp, BarrierPhase
from monolith.cluster.barrier import wait_until_barrier_removed
from monolith.errors import AlreadyExistsError
from monolith.testing import FakeClock


def test_it_goes_from_free_over_closing_closed_and_draining_to_free() -> None:
    barrier = BarrierOp(3)
    phases = [barrier.phase]
    barrier.place_barrier("Save")
    phases.append(barrier.phase)
    assert [barrier.enter(index) for index in (1, 2)] == ["Save", "Save"]
    phases.append(barrier.phase)
    assert barrier.is_all_blocked()
    barrier.remove_barrier()
    phases.append(barrier.phase)
    assert not barrier.is_none_blocked()
    barrier.leave(1)
    barrier.leave(2)
    phases.append(barrier.phase)
    assert phases == [
        BarrierPhase.FREE,
        BarrierPhase.CLOSING,
        BarrierPhase.CLOSED,
        BarrierPhase.DRAINING,
        BarrierPhase.FREE,
    ]
    assert barrier.is_none_blocked()


def test_a_second_one_is_refused_and_leaves_the_first_as_it_was() -> None:
    barrier = BarrierOp(2)
    barrier.place_barrier("Save")
    with pytest.raises(BarrierAlreadyPlacedError, match=r"placed already \(action 'Save'\)"):
        barrier.place_barrier("Stop")
    assert issubclass(BarrierAlreadyPlacedError, AlreadyExistsError)
    assert barrier.enter(1) == "Save"
    assert barrier.is_barrier_placed()


def test_the_chief_alone_is_blocked_by_placing_it() -> None:
    barrier = BarrierOp(1)
    assert (barrier.get_blocked_indices(), barrier.get_unblocked_indices()) == ([], [0])
    barrier.place_barrier()
    assert (barrier.get_blocked_indices(), barrier.get_unblocked_indices()) == ([0], [])
    assert barrier.is_all_blocked()
    barrier.remove_barrier()
    barrier.remove_barrier()  # a second time is no error
    assert barrier.is_barrier_removed()
    assert barrier.get_blocked_indices() == []


@pytest.mark.parametrize("index", [0, -1, 3, 2**40])
def test_only_workers_enter(index: int) -> None:
    barrier = BarrierOp(3)
    with pytest.raises(ValueError, match=rf"index of a worker must be in \[1, 3\), got {index}"):
        barrier.enter(index)
    assert barrier.phase is BarrierPhase.FREE


def test_a_barrier_with_capacity_zero_is_rejected() -> None:
    with pytest.raises(ValueError, match="capacity counts the chief and must be >= 1, got 0"):
        BarrierOp(0)


def test_callbacks_get_the_action_on_the_chief_and_on_each_worker() -> None:
    seen: list[str] = []
    barrier = BarrierOp(2, [seen.append], clock=FakeClock())
    barrier.place_barrier("Save")
    assert seen == ["Save"]
    barrier._callbacks.append(lambda _: barrier.remove_barrier())
    barrier.wait_until_barrier_removed(1)
    assert seen == ["Save", "Save"]
    assert barrier.is_none_blocked()


def test_a_barrier_that_is_for_nothing_has_an_empty_action() -> None:
    seen: list[str] = []
    barrier = BarrierOp(2, [seen.append])
    barrier.place_barrier()
    assert (seen, barrier.enter(1)) == ([""], "")


def test_a_callback_that_raises_lets_the_worker_go_and_the_barrier_stand() -> None:
    def refuse(action: str) -> None:
        raise OSError(f"no disk for {action}")

    barrier = BarrierOp(2, [refuse])
    with pytest.raises(OSError, match="no disk for Save"):
        barrier.place_barrier("Save")
    with pytest.raises(OSError, match="no disk for Save"):
        barrier.wait_until_barrier_removed(1)
    assert barrier.get_blocked_indices() == [0]


def test_a_waiting_worker_logs_it_each_minute(caplog: pytest.LogCaptureFixture) -> None:
    class Removes(FakeClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(min(seconds, 30))
            if self.monotonic() == 150:
                barrier.remove_barrier()

    clock = Removes()
    barrier = BarrierOp(2, clock=clock)
    barrier.place_barrier("Stop")
    with caplog.at_level(logging.INFO):
        barrier.wait_until_barrier_removed(1)
    assert clock.monotonic() == 150
    assert caplog.text.count("worker 1 still waits at the barrier (action 'Stop')") == 2
    assert barrier.is_none_blocked()


def test_a_worker_may_abandon_the_wait() -> None:
    clock = FakeClock()
    barrier = BarrierOp(2, clock=clock)
    barrier.place_barrier()
    wait_until_barrier_removed(barrier, 1, give_up=lambda: clock.monotonic() >= 5)
    assert clock.monotonic() == pytest.approx(5, abs=0.2)
    assert barrier.get_blocked_indices() == [0]


def test_workers_that_miss_the_timeout_are_named() -> None:
    clock = FakeClock()
    barrier = BarrierOp(4, clock=clock)
    barrier.place_barrier()
    barrier.enter(2)
    assert barrier.wait_blocked(30) == [1, 3]
    assert clock.monotonic() == pytest.approx(30, abs=0.2)
    barrier.enter(1)
    barrier.enter(3)
    assert barrier.wait_blocked(30) == []
    assert clock.monotonic() == pytest.approx(30, abs=0.2)


@pytest.mark.usefixtures("nothing_left_behind")
def test_workers_in_threads_come_wait_and_go() -> None:
    clock = FakeClock(blocking=True)
    barrier = BarrierOp(4, clock=clock)
    barrier.place_barrier()
    threads = [threading.Thread(target=barrier.wait_until_barrier_removed, args=(index,)) for index in (1, 2, 3)]
    for thread in threads:
        thread.start()
    clock.wait_for_sleepers(3)
    assert barrier.is_all_blocked()
    barrier.remove_barrier()
    clock.advance(1)
    for thread in threads:
        thread.join(20)
    assert barrier.is_none_blocked()


def test_a_waiter_is_woken_by_the_change_and_not_by_polling() -> None:
    """The clock stands still: who looked again after some time would never look."""
    clock = FakeClock(blocking=True)
    barrier = BarrierOp(2, clock=clock)
    barrier.place_barrier()
    with ThreadPoolExecutor(2) as pool:
        chief = pool.submit(barrier.wait_blocked, 30)
        clock.wait_for_sleepers(1)
        worker = pool.submit(barrier.wait_until_barrier_removed, 1)
        assert chief.result(30) == []
        clock.wait_for_sleepers(1)
        barrier.remove_barrier()
        worker.result(30)
    assert clock.monotonic() == 0


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens in whatever order, the slots are what a plain set of indices says."""

    def __init__(self) -> None:
        super().__init__()
        self.barrier = BarrierOp(4)
        self.blocked: set[int] = set()

    @rule(action=st.text())
    def place(self, action: str) -> None:
        if 0 in self.blocked:
            with pytest.raises(BarrierAlreadyPlacedError):
                self.barrier.place_barrier(action)
        else:
            self.barrier.place_barrier(action)
            self.blocked.add(0)

    @rule()
    def remove(self) -> None:
        self.barrier.remove_barrier()
        self.blocked.discard(0)

    @rule(index=st.integers(1, 3))
    def enter(self, index: int) -> None:
        self.barrier.enter(index)
        self.blocked.add(index)

    @rule(index=st.integers(1, 3))
    def leave(self, index: int) -> None:
        self.barrier.leave(index)
        self.blocked.discard(index)

    @invariant()
    def slots_are_the_set(self) -> None:
        assert self.barrier.get_blocked_indices() == sorted(self.blocked)
        assert self.barrier.get_unblocked_indices() == sorted(set(range(4)) - self.blocked)
        assert self.barrier.is_all_blocked() == (self.blocked == {0, 1, 2, 3})
        assert self.barrier.is_none_blocked() == (not self.blocked)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=20, stateful_step_count=25)
