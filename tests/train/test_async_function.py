"""Functions that run a step later: the original's cases, order, arguments, and what is refused."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from monolith.dependence import RecordedCall, check_ops_dependence
from monolith.errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError
from monolith.hooks import AsyncPushHook
from monolith.tensors import Ragged
from monolith.testing import StepLoop
from monolith.train import AsyncFunctionMgr


class TestAsyncManager:
    """The cases of the original."""

    def test_basic(self) -> None:
        v = torch.tensor(0)
        manager = AsyncFunctionMgr()
        enqueue = manager.add_async_function(v.add_, (torch.tensor(1),))
        with StepLoop(manager.hooks) as loop:
            loop.run(enqueue)
            loop.run(enqueue)
            assert int(v) == 1
        assert int(v) == 2, "the end runs what was left"

    def test_sync(self) -> None:
        v = torch.tensor(0)
        manager = AsyncFunctionMgr(is_async=False)
        add = manager.add_async_function(v.add_, (torch.tensor(1),))
        assert manager.hooks == []
        assert int(v) == 0
        with StepLoop(manager.hooks) as loop:
            loop.run(add)
            assert int(v) == 1

    def test_empty_input(self) -> None:
        v = torch.tensor(0)
        manager = AsyncFunctionMgr()
        enqueue = manager.add_async_function(lambda: v.add_(1))
        with StepLoop(manager.hooks) as loop:
            loop.run(enqueue)
            loop.run(enqueue)
            assert int(v) == 1


def recorder() -> tuple[list[Any], Any]:
    seen: list[Any] = []

    def target(*args: Any, **kwargs: Any) -> int:
        seen.append((args, kwargs))
        return len(seen)

    return seen, target


@pytest.mark.parametrize(("manager_says", "function_says", "is_async"), [
    (True, None, True), (False, None, False), (True, False, False), (False, True, True),
])  # fmt: skip
def test_a_function_may_differ_from_its_manager(manager_says: bool, function_says: bool | None, is_async: bool) -> None:
    seen, target = recorder()
    manager = AsyncFunctionMgr(manager_says)
    call = manager.add_async_function(target, is_async=function_says)
    call(1)
    assert bool(manager.hooks) == is_async
    assert bool(seen) != is_async


def test_each_step_passes_its_own_arguments_in_order() -> None:
    seen, target = recorder()
    manager = AsyncFunctionMgr()
    push = manager.add_async_function(target)
    ids = Ragged.from_lists([[1], []])
    with StepLoop(manager.hooks) as loop:
        for step in range(5):
            loop.run(lambda step=step: push(torch.tensor(step), ids=ids, names=["a", step]))  # type: ignore[misc]
            assert len(seen) == step
    assert [int(args[0]) for args, _ in seen] == list(range(5))
    assert all(kwargs["ids"].equal(ids) and kwargs["names"] == ["a", step] for step, (_, kwargs) in enumerate(seen))


def test_functions_among_the_arguments_are_called_in_each_step() -> None:
    seen, target = recorder()
    numbers = iter(range(10))
    manager = AsyncFunctionMgr()
    push = manager.add_async_function(
        target, [lambda: torch.tensor(next(numbers)), "grad"], {"deep": {"list": [lambda: torch.tensor(7)]}}
    )
    with StepLoop(manager.hooks) as loop:
        for _ in range(3):
            loop.run(push)
    assert [int(args[0]) for args, _ in seen] == [0, 1, 2]
    assert all(args[1] == "grad" and int(kwargs["deep"]["list"][0]) == 7 for args, kwargs in seen)


def test_arguments_are_given_once() -> None:
    _, target = recorder()
    push = AsyncFunctionMgr().add_async_function(target, (torch.ones(1),))
    with pytest.raises(TypeError, match="'async_queue' was given its arguments when it was added"):
        push(torch.zeros(1))


def test_arguments_that_do_not_travel_are_refused() -> None:
    _, target = recorder()
    push = AsyncFunctionMgr().add_async_function(target)
    with pytest.raises(ValueError, match=r"Tensor is not supported. 0.1"):
        push(learning_rate=0.1)
    with pytest.raises(TypeError, match="expected a function, got int"):
        AsyncFunctionMgr().add_async_function(3)  # type: ignore[arg-type]


def test_the_target_runs_concurrently_with_the_step_in_another_thread() -> None:
    both = threading.Barrier(2, timeout=20)
    threads = []
    manager = AsyncFunctionMgr()

    def target() -> None:
        both.wait()
        threads.append(threading.current_thread())

    push = manager.add_async_function(target)
    with StepLoop(manager.hooks) as loop:
        loop.run(push)
        loop.run(both.wait)  # passes only while the target runs
    assert threads != [threading.current_thread()]
    assert len(threads) == 1


def test_several_pushes_in_one_step_keep_their_order_and_do_not_wait_forever() -> None:
    seen, target = recorder()
    manager = AsyncFunctionMgr()
    push = manager.add_async_function(target)

    def step(number: int) -> None:
        for part in range(3):
            push(number * 10 + part)

    with StepLoop(manager.hooks) as loop:
        for number in range(20):
            loop.run(lambda number=number: step(number))  # type: ignore[misc]
    assert [args[0] for args, _ in seen] == [number * 10 + part for number in range(20) for part in range(3)]


def test_calls_that_no_session_runs_are_eventually_rejected() -> None:
    _, target = recorder()
    push = AsyncFunctionMgr().add_async_function(target)
    for number in range(16):
        push(number)
    with pytest.raises(
        FailedPreconditionError, match="16 calls are queued and no session runs them; attach the manager's hooks"
    ):
        push(16)


def test_a_failing_target_is_reported_and_not_retried() -> None:
    calls = []

    def target(number: int) -> None:
        calls.append(number)
        if number == 0:
            raise ConnectionError("server gone")

    manager = AsyncFunctionMgr()
    push = manager.add_async_function(target)
    loop = StepLoop(manager.hooks)
    with loop:
        loop.run(lambda: push(0))
        with pytest.raises(ConnectionError, match="server gone"):
            loop.run(lambda: push(1))
        loop.on_close(lambda: calls.append(-1))
    assert calls == [0, 1, -1]


def test_each_function_has_its_own_queue_and_hook() -> None:
    (first_seen, first), (second_seen, second) = recorder(), recorder()
    manager = AsyncFunctionMgr()
    pushes = [
        manager.add_async_function(first, queue_name="postpush_queue"),
        manager.add_async_function(second),
    ]
    assert [push.name for push in pushes] == ["postpush_queue_enqueue", "async_queue_enqueue"]
    assert [type(hook) for hook in manager.hooks] == [AsyncPushHook, AsyncPushHook]
    with StepLoop(manager.hooks) as loop:
        for number in range(3):
            loop.run(lambda number=number: [push(number) for push in pushes])  # type: ignore[misc]
    assert [args[0] for args, _ in first_seen] == [args[0] for args, _ in second_seen] == [0, 1, 2]


def test_the_result_of_the_target_reaches_the_hook() -> None:
    _, target = recorder()
    manager = AsyncFunctionMgr()
    push = manager.add_async_function(target)
    push(1)
    (hook,) = manager.hooks
    assert isinstance(hook, AsyncPushHook)
    assert hook._run_ops() == 1
    with pytest.raises(DeadlineExceededError):
        hook._run_ops()


def test_arguments_computed_from_the_target_are_refused() -> None:
    target = RecordedCall(lambda x: x, name="target")
    argument = RecordedCall(lambda: torch.ones(1), name="argument", reads_from=[target])
    manager = AsyncFunctionMgr()
    text = r"the ops \[async_queue_enqueue\] depend on ops \[target\], which may cause ops \[target\] to be run twice\."
    for args in ([argument], [{"deep": [argument]}]):
        with pytest.raises(InvalidArgumentError, match=text):
            manager.add_async_function(target, args)
    assert manager.hooks == [], "nothing is half done"
    manager.add_async_function(target, [RecordedCall(lambda: torch.ones(1), name="other")])


def test_the_enqueue_call_tracks_what_it_reads() -> None:
    _, target = recorder()
    source = RecordedCall(lambda: torch.ones(1), name="source")
    for is_async in (True, False):
        push = AsyncFunctionMgr(is_async).add_async_function(target, [source])
        with pytest.raises(InvalidArgumentError, match=r"depend on ops .source."):
            check_ops_dependence(push, source)
