"""When a queued push runs: beside the next step, or at the end."""

from __future__ import annotations

import pytest

from monolith.data.prefetch import BoundedQueue
from monolith.hook import Hook, StepContext
from monolith.hooks import AsyncPushHook
from monolith.testing import StepLoop


def pushing() -> tuple[BoundedQueue[int], list[int], AsyncPushHook]:
    queue: BoundedQueue[int] = BoundedQueue(4, name="push")
    done: list[int] = []
    return queue, done, AsyncPushHook(queue, lambda: done.append(queue.get()))


def put_all(queue: BoundedQueue[int], *numbers: int) -> None:
    for number in numbers:
        queue.put(number)


def test_nothing_runs_alongside_the_first_step_and_the_rest_runs_at_the_end() -> None:
    queue, done, hook = pushing()
    seen = []
    with StepLoop([hook]) as loop:
        for number in range(4):
            loop.run(lambda number=number: queue.put(number))  # type: ignore[misc]
            seen.append(list(done))
    assert seen == [[], [0], [0, 1], [0, 1, 2]]
    assert done == [0, 1, 2, 3]


def test_steps_that_queue_nothing_run_nothing_and_wait_for_nothing() -> None:
    queue, done, hook = pushing()
    with StepLoop([hook]) as loop:
        for number in range(6):
            loop.run(lambda number=number: queue.put(number) if number % 3 == 0 else None)  # type: ignore[misc]
    assert done == [0, 3]


def test_several_pushes_of_one_step_run_alongside_the_next() -> None:
    queue, done, hook = pushing()
    with StepLoop([hook]) as loop:
        loop.run(lambda: put_all(queue, 0, 1, 2))
        assert done == []
        loop.run(lambda: queue.put(3))
        assert done == [0, 1, 2]
    assert done == [0, 1, 2, 3]


def test_everything_that_waits_is_run_at_the_end() -> None:
    queue, done, hook = pushing()
    with StepLoop([hook]) as loop:
        loop.run(lambda: put_all(queue, 0, 1, 2, 3))
    assert done == [0, 1, 2, 3]


def test_a_session_that_fails_does_not_push_what_is_left() -> None:
    queue, done, hook = pushing()

    def step() -> None:
        queue.put(1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), StepLoop([hook]) as loop:
        loop.run(step)
    assert queue.size() == 1
    assert done == []


def test_a_push_that_fails_ends_the_step() -> None:
    queue, _, _ = pushing()

    def fails() -> None:
        queue.get()
        raise ConnectionError("server gone")

    with StepLoop([AsyncPushHook(queue, fails)]) as loop:
        loop.run(lambda: queue.put(1))
        with pytest.raises(ConnectionError, match="server gone"):
            loop.run(lambda: None)


def test_it_is_a_hook_that_starts_afresh() -> None:
    queue, _, hook = pushing()
    assert isinstance(hook, Hook)
    queue.put(1)
    hook.begin()
    context = StepContext(StepLoop())
    assert hook.before_run(context) is None, "what an earlier session left waits for the first step"
    hook.after_run(context)
    assert hook.before_run(context) is not None
