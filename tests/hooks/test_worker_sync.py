"""Chief and workers begin and end together."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from hooks.sessions import FakeSession, SleepCalls
from monolith.hook import Hook, HookedSession
from monolith.hooks import ChiefSyncHook, InProcessFlags, SyncHelper, TrainingHooksHelper, WorkerSyncHook
from monolith.testing import FakeClock, StepLoop


class CountHook(Hook):
    """Counts what was reached; stands behind the hook under test, so it is reached when that one has returned."""

    def __init__(self) -> None:
        self.created = threading.Event()
        self.ended = threading.Event()

    def after_create_session(self, session: HookedSession) -> None:
        self.created.set()

    def end(self, session: HookedSession) -> None:
        self.ended.set()


def test_sync_process() -> None:
    """The original's case: the worker waits for the restore of the chief, the chief for the end of the worker."""
    clock = FakeClock(blocking=True)
    helper = SyncHelper(2, flags=InProcessFlags(2, clock=clock))
    chief_count, worker_count = CountHook(), CountHook()
    may_end = threading.Event()

    def work() -> None:
        with StepLoop([WorkerSyncHook(1, helper), worker_count]):
            assert may_end.wait(30)

    def lead() -> None:
        with StepLoop([ChiefSyncHook(helper), chief_count]):
            pass

    worker = threading.Thread(target=work)
    worker.start()
    clock.wait_for_sleepers(1)
    assert helper.get_alive_workers() == [1]
    assert not worker_count.created.is_set()

    chief = threading.Thread(target=lead)
    chief.start()
    assert worker_count.created.wait(30)  # the restore wakes it; who sleeps from now on is the chief
    clock.wait_for_sleepers(1)
    assert chief_count.created.is_set()
    assert not chief_count.ended.is_set()

    may_end.set()
    worker.join(30)
    assert worker_count.ended.is_set()
    assert helper.get_num_alive_workers() == 0
    clock.advance(60)
    chief.join(30)
    assert chief_count.ended.is_set()


def test_hook_helper() -> None:
    """The original's case: nothing when disabled, a hook for the chief or the worker when enabled."""
    off = TrainingHooksHelper(False, 2)
    assert (off.training_hooks, off.training_chief_hooks) == ((), ())
    alone = TrainingHooksHelper(True, 1)
    assert (alone.training_hooks, alone.training_chief_hooks) == ((), ())
    flags = InProcessFlags(2)
    chief, worker = (TrainingHooksHelper(True, 2, index, 60, flags=flags) for index in (0, 1))
    assert [type(hook) for hook in (*chief.training_hooks, *chief.training_chief_hooks)] == [ChiefSyncHook]
    assert [type(hook) for hook in (*worker.training_hooks, *worker.training_chief_hooks)] == [WorkerSyncHook]
    with pytest.raises(ValueError, match=r"worker_idx must be in \[0, 2\), got 2"):
        TrainingHooksHelper(True, 2, worker_idx=2)


@pytest.mark.parametrize("worker_idx", [0, 1])
def test_workers_that_could_never_reach_each_other_are_rejected(worker_idx: int) -> None:
    """A worker with flags of its own would wait for ever, a chief end before its workers."""
    with pytest.raises(
        ValueError, match=rf"worker {worker_idx} of 2 .* needs flags, got none\..*InProcessFlags\(num_workers\)"
    ):
        TrainingHooksHelper(True, 2, worker_idx)
    with pytest.raises(ValueError, match=r"a worker needs flags that the chief changes, got none.*InProcessFlags"):
        SyncHelper(2, False)
    assert SyncHelper(2, False, flags=InProcessFlags(2)).get_alive_workers() == []
    assert TrainingHooksHelper(False, 2, worker_idx).training_hooks == ()


def test_the_arguments_have_the_order_that_users_expect() -> None:
    clock = FakeClock()
    flags = InProcessFlags(2, clock=clock)
    helper = SyncHelper(2, True, flags=flags)
    helper.start_worker(1)
    (hook,) = TrainingHooksHelper(True, 2, 0, 7, flags=flags).training_chief_hooks
    assert isinstance(hook, ChiefSyncHook)
    ChiefSyncHook(helper, 7).end(FakeSession())
    assert clock.monotonic() == 7
    assert hook.timeout_seconds == 7
    (hook,) = TrainingHooksHelper(True, 2, flags=flags).training_chief_hooks
    assert isinstance(hook, ChiefSyncHook)
    assert hook.timeout_seconds == 1800


def test_a_worker_logs_once_a_minute_that_it_waits(caplog: pytest.LogCaptureFixture) -> None:
    session = FakeSession()
    clock = SleepCalls(lambda: session.request_stop() if clock.monotonic() >= 121 else None)
    with caplog.at_level(logging.INFO):
        WorkerSyncHook(1, SyncHelper(2, flags=InProcessFlags(2, clock=clock))).after_create_session(session)
    assert clock.monotonic() == pytest.approx(121, abs=0.5)
    assert caplog.messages == ["worker 1 waits until the chief has restored the model"] * 3


def test_helpers_of_several_workers_share_flags() -> None:
    flags = InProcessFlags(3)
    helpers = [TrainingHooksHelper(True, 3, worker_idx=index, flags=flags) for index in range(3)]
    session = FakeSession()
    helpers[0].training_chief_hooks[0].after_create_session(session)
    helpers[2].training_hooks[0].after_create_session(session)
    assert flags.read() == [True, False, True]


def test_flags_mean_restored_and_alive() -> None:
    helper = SyncHelper(4)
    assert not helper.get_restore_status()
    helper.mark_restore_done()
    assert helper.get_restore_status()
    assert (helper.get_alive_workers(), helper.get_num_alive_workers()) == ([], 0)
    helper.start_worker(3)
    helper.start_worker(1)
    helper.start_worker(1)
    assert (helper.get_alive_workers(), helper.get_num_alive_workers()) == ([1, 3], 2)
    helper.finish_worker(1)
    helper.finish_worker(1)
    assert helper.get_alive_workers() == [3]


@pytest.mark.parametrize("index", [0, -1, 2])
def test_the_flag_of_the_chief_is_no_workers(index: int) -> None:
    helper = SyncHelper(2)
    with pytest.raises(ValueError, match=rf"index of a worker must be in \[1, 2\), got {index}"):
        helper.start_worker(index)
    with pytest.raises(ValueError, match="index of a worker"):
        WorkerSyncHook(index, helper)
    assert not helper.get_restore_status()


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="must be >= 1, got 0"):
        SyncHelper(0)
    with pytest.raises(ValueError, match="a flag for each of 3 workers, got 2"):
        SyncHelper(3, flags=InProcessFlags(2))


def test_the_chief_does_not_wait_forever(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    helper = SyncHelper(4, flags=InProcessFlags(4, clock=clock))
    helper.start_worker(1)
    helper.start_worker(3)
    with caplog.at_level(logging.INFO):
        ChiefSyncHook(helper).end(FakeSession())
    assert clock.monotonic() == 1800
    assert "ending without workers [1, 3], alive after 1800 s" in caplog.text
    assert caplog.text.count("waiting for workers [1, 3] to end") == 30


def test_a_worker_that_fails_is_not_waited_for() -> None:
    helper = SyncHelper(2)
    helper.mark_restore_done()
    with pytest.raises(ZeroDivisionError), StepLoop([WorkerSyncHook(1, helper)]) as loop:
        loop.run(lambda: helper.get_num_alive_workers() // 0)
    assert helper.get_alive_workers() == []


def test_a_stop_ends_the_wait_of_a_worker() -> None:
    session = FakeSession()
    clock = SleepCalls(session.request_stop)
    WorkerSyncHook(1, SyncHelper(2, flags=InProcessFlags(2, clock=clock))).after_create_session(session)
    assert clock.sleeps == [0.2]


def test_a_wait_ends_with_the_flag_and_not_with_a_look() -> None:
    """The clock stands still: who looked again after some time would never look."""
    clock = FakeClock(blocking=True)
    flags = InProcessFlags(2, clock=clock)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(flags.wait, lambda flags: flags[0], timeout_seconds=None)
        clock.wait_for_sleepers(1)
        flags.set(1, True)
        assert not waiting.done()
        flags.set(0, True)
        assert waiting.result(30)
    assert clock.monotonic() == 0
