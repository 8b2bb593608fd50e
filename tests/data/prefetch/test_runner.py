"""The threads that fill queues: they end, whatever happens, and say why."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from monolith.data import InMemoryDataset
from monolith.data.prefetch import (
    BoundedQueue,
    ElementQueue,
    MultiQueueRunner,
    SideStreams,
    Taker,
    enqueue_dicts_with_queue_return,
)
from monolith.data.prefetch import runner as runner_module
from monolith.errors import (
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    OutOfRangeError,
    UnavailableError,
)


def queue_of(make: Any, capacity: int = 1) -> tuple[Taker, ElementQueue]:
    take, queue = enqueue_dicts_with_queue_return(make, capacity, "clicks")
    assert isinstance(take, Taker)
    assert queue is not None
    return take, queue


def runner_of(queue: ElementQueue, num_threads: int = 1) -> MultiQueueRunner:
    return MultiQueueRunner(queue, [queue.enqueue_op] * num_threads)


def counter() -> Callable[[], int]:
    numbers = iter(range(1_000_000))
    return lambda: next(numbers)


def note_side_streams(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """Returns a list that receives the calls which threads of runners make on side streams."""
    calls: list[Callable[[], object]] = []

    class Noting(SideStreams):
        def run(self, call: Callable[[], object]) -> None:
            calls.append(call)
            super().run(call)

    monkeypatch.setattr(runner_module, "SideStreams", Noting)
    return calls


def until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_threads_have_the_name_of_the_queue() -> None:
    _, queue = queue_of(counter())
    with runner_of(queue, 2) as runner:
        assert sorted(thread.name for thread in runner.threads) == ["clicks/enqueue-0", "clicks/enqueue-1"]
        assert runner.name == "clicks"
        assert runner.queue is queue.queue
    assert runner.threads == []


def test_a_runner_of_one_queue_takes_it_bare_or_in_a_list() -> None:
    queue: BoundedQueue[int] = BoundedQueue(1, name="bare")
    assert MultiQueueRunner(queue, [lambda: queue.put(1)]).queue is queue
    for queues, calls in (([], [lambda: None]), ([queue], [])):
        with pytest.raises(ValueError, match="at least one queue and one enqueue call, got"):
            MultiQueueRunner(queues, calls)


@pytest.mark.parametrize("side_streams", [True, False])
def test_threads_work_on_side_streams_unless_items_are_not_staged(
    monkeypatch: pytest.MonkeyPatch, side_streams: bool
) -> None:
    on_side_streams = note_side_streams(monkeypatch)
    queue: BoundedQueue[int] = BoundedQueue(1, name="clicks")
    numbers = iter(range(3))
    with MultiQueueRunner(queue, [lambda: queue.put(next(numbers))], side_streams=side_streams):
        assert [queue.get() for _ in range(3)] == [0, 1, 2]
        with pytest.raises(OutOfRangeError):
            queue.get()
    assert len(on_side_streams) == (4 if side_streams else 0)


def test_a_dataset_prefetches_on_the_stream_of_its_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    on_side_streams = note_side_streams(monkeypatch)
    assert list(InMemoryDataset([1, 2, 3]).prefetch(2)) == [1, 2, 3]
    assert on_side_streams == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_tensors_of_a_prefetched_dataset_are_ready_when_used() -> None:
    torch.cuda.init()  # type: ignore[no-untyped-call]

    def make(number: int) -> torch.Tensor:
        x = torch.zeros(1 << 22, device="cuda")
        for _ in range(20):  # long enough that a consumer who does not wait sees it unfinished
            x += 1
        return x + number

    for number, x in enumerate(InMemoryDataset(list(range(100))).map(make).prefetch(2)):
        assert torch.all(x == 20 + number)


def test_a_runner_of_several_queues_opens_fails_and_closes_them_together() -> None:
    queues: list[BoundedQueue[int]] = [BoundedQueue(1, name=name) for name in ("cpu", "gpu")]
    numbers = iter(range(2))

    def fill() -> None:
        number = next(numbers)
        for queue in queues:
            queue.put(number)

    runner = MultiQueueRunner(queues, [fill])
    assert runner.name == "cpu"
    with pytest.raises(NotImplementedError, match="'cpu' fills several queues"):
        _ = runner.queue
    queues[1].close()
    with runner:
        for number in range(2):
            assert [queue.get() for queue in queues] == [number] * 2
        for queue in queues:
            with pytest.raises(OutOfRangeError):
                queue.get()
    with pytest.raises(ZeroDivisionError), MultiQueueRunner(queues, [lambda: 1 // 0]):
        queues[1].get()


@pytest.mark.parametrize("end", [OutOfRangeError("end of file"), StopIteration()])
def test_the_end_of_the_data_closes_the_queue_after_everything_was_taken(end: Exception) -> None:
    made = iter([1, 2, 3, end])

    def make() -> Any:
        item = next(made)
        if isinstance(item, Exception):
            raise item
        return item

    take, queue = queue_of(make, capacity=2)
    with runner_of(queue):
        assert [take(), take(), take()] == [1, 2, 3]
        with pytest.raises(OutOfRangeError, match="'clicks' is closed and has no items left"):
            take()


def test_the_queue_ends_when_the_last_of_several_threads_ends() -> None:
    first_ended = threading.Event()
    slow = iter(range(5))
    queue: BoundedQueue[int] = BoundedQueue(1, name="clicks")

    def ends_at_once() -> None:
        first_ended.set()
        raise OutOfRangeError("nothing here")

    def goes_on() -> None:
        first_ended.wait()
        queue.put(next(slow))

    with MultiQueueRunner(queue, [ends_at_once, goes_on]):
        assert [queue.get() for _ in range(5)] == list(range(5))
        with pytest.raises(OutOfRangeError):
            queue.get()


@pytest.mark.parametrize("error", [ZeroDivisionError("rate"), UnavailableError("broker"), SystemExit(3)])
def test_an_error_reaches_the_consumer_with_its_traceback(error: BaseException) -> None:
    made = iter([1, 2])

    def read_slot() -> int:
        try:
            return next(made)
        except StopIteration:
            raise error from None

    take, queue = queue_of(read_slot)
    with runner_of(queue):
        assert [take(), take()] == [1, 2]
        for _ in range(2):
            with pytest.raises(type(error)) as caught:
                take()
            assert caught.value is error
            shown = "".join(traceback.format_exception(caught.value))
            assert "read_slot" in shown
            assert "raised in thread 'clicks/enqueue-0', which fills queue 'clicks'" in shown


def test_an_error_in_one_thread_ends_the_others() -> None:
    take, queue = queue_of(counter(), capacity=1)
    failing = threading.Event()

    def fails() -> None:
        failing.wait()
        raise ZeroDivisionError

    with MultiQueueRunner(queue.queues, [queue.enqueue_op, fails, queue.enqueue_op]) as runner:
        take()
        failing.set()
        until(lambda: not runner.threads)
        queue.clear()
        with pytest.raises(ZeroDivisionError):
            take()


def test_a_cancelled_error_of_the_function_itself_is_an_error() -> None:
    def make() -> int:
        raise CancelledError("the broker gave up")

    take, queue = queue_of(make)
    with runner_of(queue), pytest.raises(CancelledError, match="the broker gave up"):
        take()


@pytest.mark.parametrize("num_threads", [1, 3])
def test_stopping_wakes_threads_that_wait_for_room(num_threads: int) -> None:
    _, queue = queue_of(counter())
    runner = runner_of(queue, num_threads)
    runner.start()
    until(lambda: len(queue._waiting_puts) == num_threads)
    runner.stop(timeout_seconds=20)
    assert runner.threads == []
    runner.stop()


def test_stopping_wakes_a_consumer_that_waits() -> None:
    go_on = threading.Event()
    take, queue = queue_of(lambda: go_on.wait(20) and 1)
    runner = runner_of(queue)
    runner.start()
    ended: list[type[BaseException]] = []

    def consume() -> None:
        try:
            take()
        except OutOfRangeError as error:
            ended.append(type(error))

    consumer = threading.Thread(target=consume)
    consumer.start()
    until(lambda: queue._num_waiting_gets == 1)
    threading.Timer(0.05, go_on.set).start()
    runner.stop()
    consumer.join(20)
    # The element that was in the making may arrive before the queue is closed, but nothing waits forever.
    assert not consumer.is_alive()
    assert ended == [OutOfRangeError]


def test_what_is_left_after_a_stop_can_be_taken_and_then_it_ends() -> None:
    take, queue = queue_of(counter(), capacity=3)
    with runner_of(queue):
        until(lambda: len(queue._waiting_puts) == 1)
    assert list(take) == [0, 1, 2]


def test_stop_and_start_lose_nothing_and_double_nothing() -> None:
    take, queue = queue_of(counter(), capacity=2)
    runner = runner_of(queue)
    taken = []
    for _ in range(20):
        with runner:
            taken += [take(), take(), take()]
    assert taken == list(range(60))


def test_a_restart_after_an_error_resumes() -> None:
    made = iter([1, ZeroDivisionError(), 2])

    def make() -> Any:
        item = next(made)
        if isinstance(item, Exception):
            raise item
        return item

    take, queue = queue_of(make)
    runner = runner_of(queue)
    with runner:
        assert take() == 1
        with pytest.raises(ZeroDivisionError):
            take()
    with runner:
        assert list(take) == [2]


def test_a_second_start_is_refused_while_threads_run() -> None:
    _, queue = queue_of(counter())
    with runner_of(queue) as runner, pytest.raises(FailedPreconditionError, match="'clicks' is running already"):
        runner.start()


def test_a_function_that_does_not_return_is_named() -> None:
    go_on = threading.Event()
    _, queue = queue_of(go_on.wait)
    runner = runner_of(queue)
    runner.start()
    with pytest.raises(DeadlineExceededError, match=r"clicks/enqueue-0 did not stop within 0.01 s"):
        runner.stop(timeout_seconds=0.01)
    go_on.set()
    runner.stop()


def test_a_slow_consumer_bounds_what_is_made() -> None:
    made = 0

    def make() -> int:
        nonlocal made
        made += 1
        return made

    take, queue = queue_of(make, capacity=2)
    with runner_of(queue):
        for taken in range(1, 6):
            assert take() == taken
            until(lambda taken=taken: made == taken + 3)  # type: ignore[misc] # two wait, the thread holds one
            time.sleep(0.01)
            assert made == taken + 3


def test_a_slow_producer_is_waited_for() -> None:
    numbers = iter(range(5))

    def make() -> int:
        time.sleep(0.02)
        return next(numbers)

    take, queue = queue_of(make, capacity=4)
    with runner_of(queue):
        assert list(take) == list(range(5))


def test_an_interrupted_consumer_ends_the_threads() -> None:
    take, queue = queue_of(counter())
    main = threading.get_ident()

    def make_nothing() -> None:
        until(lambda: queue._num_waiting_gets == 1)
        time.sleep(0.1)  # the wait begins a moment later, and a signal before it would be noticed only after it
        signal.pthread_kill(main, signal.SIGINT)
        raise OutOfRangeError("done")

    runner = MultiQueueRunner(queue.queues, [make_nothing, lambda: time.sleep(0.01)])
    with pytest.raises(KeyboardInterrupt), runner:
        take()
    assert runner.threads == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_fork_raises_instead_of_waiting_for_a_thread_that_it_does_not_have() -> None:
    take, queue = queue_of(counter())
    with runner_of(queue), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks beside threads: our case
        until(lambda: queue.size() == 1)
        child = os.fork()
        if child == 0:  # pragma: no cover - measured in another process
            status = 1
            try:
                take()
            except FailedPreconditionError as error:
                status = 0 if "make the queue after the fork" in str(error) else 2
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert take() == 0
