"""Order, bounds, the end and its reasons, and that nobody waits forever."""

from __future__ import annotations

import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.data.prefetch import BoundedQueue
from monolith.errors import CancelledError, DeadlineExceededError, OutOfRangeError

WAIT = 20.0
"""Longer than any of these waits takes on a busy machine; passing it means that somebody was not woken."""


def queue_of(*items: int, capacity: int = 4) -> BoundedQueue[int]:
    queue: BoundedQueue[int] = BoundedQueue(capacity, name="q")
    for item in items:
        queue.put(item)
    return queue


def until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_first_in_first_out() -> None:
    queue = queue_of(3, 1, 2)
    assert queue.size() == 3
    assert [queue.get() for _ in range(3)] == [3, 1, 2]
    assert queue.size() == 0


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_queue_without_room_is_refused(capacity: int) -> None:
    with pytest.raises(ValueError, match="'q': capacity must be at least 1, got"):
        BoundedQueue(capacity, name="q")


@pytest.mark.parametrize("capacity", [1.0, True, None, "2"])
def test_a_capacity_is_an_integer(capacity: object) -> None:
    with pytest.raises(TypeError, match="capacity must be an integer, got"):
        BoundedQueue(capacity, name="q")  # type: ignore[arg-type]


def test_no_item_or_no_room_within_the_time_given() -> None:
    queue = queue_of(1, capacity=1)
    with pytest.raises(DeadlineExceededError, match=r"'q' stayed full for .* s; the time-out was 0.01 s"):
        queue.put(2, timeout_seconds=0.01)
    assert queue.get() == 1
    with pytest.raises(DeadlineExceededError, match=r"'q' stayed empty"):
        queue.get(timeout_seconds=0)
    assert queue.size() == 0


def test_a_closed_queue_gives_what_is_left_and_then_ends() -> None:
    queue = queue_of(1, 2)
    queue.close()
    queue.close()
    with pytest.raises(CancelledError, match="'q' is closed"):
        queue.put(3)
    assert [queue.get(), queue.get()] == [1, 2]
    for _ in range(2):
        with pytest.raises(OutOfRangeError, match="'q' is closed and has no items left"):
            queue.get()


def test_closing_lets_a_waiting_put_through_and_the_consumer_waits_for_it() -> None:
    queue = queue_of(1, capacity=1)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(queue.put, 2)
        until(lambda: len(queue._waiting_puts) == 1)
        queue.close()
        assert [queue.get(WAIT), queue.get(WAIT)] == [1, 2]
        waiting.result(WAIT)
        with pytest.raises(OutOfRangeError):
            queue.get(WAIT)


def test_cancelling_ends_waiting_puts_without_adding() -> None:
    queue = queue_of(1, capacity=1)
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(queue.put, item) for item in (2, 3)]
        until(lambda: len(queue._waiting_puts) == 2)
        queue.close(cancel_pending_enqueues=True)
        for each in waiting:
            with pytest.raises(CancelledError, match="closed while an item waited for room"):
                each.result(WAIT)
    assert queue.get() == 1
    with pytest.raises(OutOfRangeError):
        queue.get()


def test_a_cancelled_put_adds_nothing_even_if_the_queue_reopens_before_its_thread_runs() -> None:
    queue = queue_of(1, capacity=1)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(queue.put, 2)
        until(lambda: len(queue._waiting_puts) == 1)
        with queue._lock:
            queue.close(cancel_pending_enqueues=True)
            queue.reopen()
        assert queue.get() == 1
        with pytest.raises(CancelledError, match="closed while an item waited for room"):
            waiting.result(WAIT)
    assert queue.size() == 0


def test_a_put_that_times_out_on_a_closed_queue_ends_consumers() -> None:
    queue = queue_of(1, capacity=1)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(queue.put, 2, 0.05)
        until(lambda: len(queue._waiting_puts) == 1)
        queue.close()
        with pytest.raises(DeadlineExceededError):
            waiting.result(WAIT)
    assert queue.get() == 1
    with pytest.raises(OutOfRangeError):
        queue.get(WAIT)


@pytest.mark.parametrize("cancel", [False, True])
def test_closing_wakes_every_consumer(cancel: bool) -> None:
    queue = queue_of()
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(queue.get) for _ in range(8)]
        until(lambda: queue._num_waiting_gets == 8)
        queue.close(cancel_pending_enqueues=cancel)
        for each in waiting:
            with pytest.raises(OutOfRangeError):
                each.result(WAIT)


def broken_reader() -> None:
    raise KeyError("slot 7")


def test_an_error_comes_after_what_was_made_before_it_with_its_own_traceback() -> None:
    queue = queue_of(1)
    try:
        broken_reader()
    except KeyError as error:
        queue.fail(error)
    queue.fail(RuntimeError("a later one"))
    assert queue.get() == 1
    lengths = set()
    for _ in range(3):
        with pytest.raises(KeyError, match="slot 7") as caught:
            queue.get()
        frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert "broken_reader" in frames
        lengths.add(len(frames))
    assert len(lengths) == 1, "telling it again does not make the traceback longer"
    with pytest.raises(CancelledError):
        queue.put(2)


def test_an_error_reaches_consumers_that_wait() -> None:
    queue = queue_of()
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(queue.get) for _ in range(3)]
        until(lambda: queue._num_waiting_gets == 3)
        queue.fail(KeyError("slot 7"))
        for each in waiting:
            with pytest.raises(KeyError, match="slot 7"):
                each.result(WAIT)


def test_an_error_after_the_end_is_still_raised() -> None:
    queue = queue_of()
    queue.close()
    queue.fail(KeyError("late"))
    with pytest.raises(KeyError, match="late"):
        queue.get()


def test_a_reopened_queue_keeps_its_remaining_items_and_discards_the_error() -> None:
    queue = queue_of(1)
    queue.fail(KeyError("x"))
    queue.reopen()
    queue.put(2)
    assert [queue.get(), queue.get()] == [1, 2]
    with pytest.raises(DeadlineExceededError):
        queue.get(0)


def test_clearing_makes_room_for_waiting_puts() -> None:
    queue = queue_of(1, capacity=1)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(queue.put, 2)
        until(lambda: len(queue._waiting_puts) == 1)
        queue.clear()
        waiting.result(WAIT)
    assert queue.get() == 2


@pytest.mark.parametrize("capacity", [1, 3])
def test_many_producers_and_consumers_lose_nothing_and_double_nothing(capacity: int) -> None:
    queue = queue_of(capacity=capacity)
    taken: list[list[int]] = [[] for _ in range(5)]
    largest = 0

    def produce(worker: int) -> None:
        for number in range(300):
            queue.put(worker * 1000 + number)

    def consume(mine: list[int]) -> None:
        nonlocal largest
        while True:
            try:
                mine.append(queue.get())
            except OutOfRangeError:
                return
            largest = max(largest, queue.size())

    with ThreadPoolExecutor(9) as pool:
        consumers = [pool.submit(consume, mine) for mine in taken]
        for producer in [pool.submit(produce, worker) for worker in range(4)]:
            producer.result(WAIT)
        queue.close()
        for consumer in consumers:
            consumer.result(WAIT)
    everything = Counter(item for mine in taken for item in mine)
    assert everything == Counter(worker * 1000 + number for worker in range(4) for number in range(300))
    assert largest <= capacity
    for mine in taken:  # what one consumer sees of one producer is in order
        for worker in range(4):
            of_worker = [item for item in mine if item // 1000 == worker]
            assert of_worker == sorted(of_worker)


@given(st.lists(st.sampled_from(["put", "get", "close", "reopen", "clear"]), max_size=40), st.integers(1, 3))
def test_any_sequence_of_calls_agrees_with_a_list(calls: list[str], capacity: int) -> None:
    queue: BoundedQueue[int] = BoundedQueue(capacity, name="q")
    model: list[int] = []
    closed = False
    for number, call in enumerate(calls):
        if call == "put":
            if closed:
                with pytest.raises(CancelledError):
                    queue.put(number, 0)
            elif len(model) == capacity:
                with pytest.raises(DeadlineExceededError):
                    queue.put(number, 0)
            else:
                queue.put(number, 0)
                model.append(number)
        elif call == "get":
            if model:
                assert queue.get(0) == model.pop(0)
            else:
                with pytest.raises(OutOfRangeError if closed else DeadlineExceededError):
                    queue.get(0)
        else:
            getattr(queue, call)()
            closed = {"close": True, "reopen": False}.get(call, closed)
            model = [] if call == "clear" else model
        assert queue.size() == len(model)
        assert queue.closed == closed


def test_an_interrupt_of_the_waiting_main_thread_leaves_the_queue_intact() -> None:
    queue = queue_of()
    main = threading.get_ident()

    def interrupt() -> None:
        until(lambda: queue._num_waiting_gets == 1)
        time.sleep(0.1)  # the wait begins a moment later, and a signal before it would be noticed only after it
        signal.pthread_kill(main, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        queue.get(WAIT)
    assert time.monotonic() - start < WAIT / 2, "the wait itself was interrupted"
    interrupter.join()
    assert queue._num_waiting_gets == 0
    queue.put(1)
    assert queue.get() == 1


def test_it_shows_its_name_and_state() -> None:
    queue = queue_of(1)
    assert repr(queue) == "BoundedQueue('q', 1 of 4 items, open)"
    queue.close()
    assert repr(queue) == "BoundedQueue('q', 1 of 4 items, closed)"


def test_an_item_that_waits_for_room_is_available_as_soon_as_room_is_free() -> None:
    queue: BoundedQueue[int] = BoundedQueue(1, name="numbers")
    queue.put(1)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(queue.put, 2, 30)
        until(lambda: len(queue._waiting_puts) == 1)
        assert queue.get() == 1
        # Whether or not the thread that put it runs meanwhile.
        assert queue.size() == 1
        assert queue.get(0) == 2
        waiting.result(30)
    assert not queue._waiting_puts
