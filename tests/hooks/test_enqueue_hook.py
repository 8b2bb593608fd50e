"""A session fills its prefetch queue, and closes without a thread left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from monolith.data.prefetch import ElementQueue, Taker, enqueue_dicts_with_queue_return
from monolith.errors import OutOfRangeError
from monolith.hook import Hook, HookedSession
from monolith.hooks import EnqueueHook
from monolith.testing import StepLoop


def queue_of(make: Callable[[], Any], capacity: int = 1) -> tuple[Taker, ElementQueue]:
    take, queue = enqueue_dicts_with_queue_return(make, capacity)
    assert isinstance(take, Taker)
    assert queue is not None
    return take, queue


def test_the_thread_runs_from_the_creation_of_the_session_to_its_end() -> None:
    take, queue = queue_of(iter(range(100)).__next__)
    hook = EnqueueHook(queue)
    hook.begin()
    assert hook.runner.threads == []
    with StepLoop([hook]) as loop:
        assert [thread.name for thread in hook.runner.threads] == ["prefetch_queue/enqueue-0"]
        assert [loop.run(take) for _ in range(10)] == list(range(10))
    assert hook.runner.threads == []


def test_a_step_that_raises_ends_the_thread() -> None:
    take, queue = queue_of(iter(range(100)).__next__)
    hook = EnqueueHook(queue)
    with pytest.raises(ZeroDivisionError), StepLoop([hook]) as loop:
        loop.run(lambda: take() // 0)
    assert hook.runner.threads == []


def test_an_error_of_the_input_ends_the_session_with_it() -> None:
    def make() -> int:
        raise KeyError("slot 7")

    take, queue = queue_of(make)
    hook = EnqueueHook(queue)
    with pytest.raises(KeyError, match="slot 7"), StepLoop([hook]) as loop:
        loop.run(take)
    assert hook.runner.threads == []


def test_a_hook_that_fails_after_it_ends_the_thread() -> None:
    class Refuses(Hook):
        def after_create_session(self, session: HookedSession) -> None:
            raise ConnectionError("no server")

    _, queue = queue_of(iter(range(100)).__next__)
    hook = EnqueueHook(queue)
    with pytest.raises(ConnectionError), StepLoop([hook, Refuses()]):
        pytest.fail("the session was not created")
    assert hook.runner.threads == []


def test_a_rebuilt_session_resumes_where_the_first_one_stopped() -> None:
    take, queue = queue_of(iter(range(100)).__next__, capacity=3)
    hook = EnqueueHook(queue)
    taken = []
    for _ in range(4):
        with StepLoop([hook]) as loop:
            taken += [loop.run(take) for _ in range(5)]
    assert taken == list(range(20))


def test_a_session_that_sets_its_input_back_clears_the_queue() -> None:
    position = 0

    def make() -> int:
        nonlocal position
        position += 1
        return position

    take, queue = queue_of(make, capacity=3)
    hook = EnqueueHook(queue)
    with StepLoop([hook]) as loop:
        assert [loop.run(take) for _ in range(3)] == [1, 2, 3]
    position = 2
    queue.clear()
    with StepLoop([hook]) as loop:
        assert [loop.run(take) for _ in range(3)] == [3, 4, 5]


def test_the_session_ends_when_the_data_does() -> None:
    take, queue = queue_of(iter(range(7)).__next__)
    with StepLoop([EnqueueHook(queue)]) as loop:
        while not loop.stop_requested:
            try:
                loop.run(take)
            except OutOfRangeError:
                loop.request_stop()
    assert loop.global_step == 7
