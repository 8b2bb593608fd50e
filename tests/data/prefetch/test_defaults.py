"""Names, lengths and limits where nobody says otherwise, as users of the original know them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from monolith.data.prefetch import (
    ElementQueue,
    FIFOQueue,
    MultiFIFOQueue,
    MultiQueueRunner,
    PaddingFIFOQueue,
    enqueue,
    enqueue_dicts_with_queue_return,
    prefetch,
)
from monolith.errors import DeadlineExceededError, OutOfRangeError


def queue_of_dicts() -> ElementQueue:
    _, queue = enqueue_dicts_with_queue_return(lambda: {"x": torch.ones(1)})
    assert queue is not None
    return queue


@pytest.mark.parametrize(
    ("make", "length"),
    [
        (lambda: FIFOQueue([torch.ones(1)]), 2),
        (lambda: MultiFIFOQueue([torch.ones(1)]), 2),
        (queue_of_dicts, 1),
    ],
)
def test_a_queue_holds_the_given_number_of_elements_and_is_called_prefetch_queue(
    make: Callable[[], Any], length: int
) -> None:
    queue = make()
    for _ in range(length):
        queue.enqueue_op()
    with pytest.raises(DeadlineExceededError):
        queue.queue.put(object(), timeout_seconds=0.0)
    assert queue.size() == length
    assert queue.name == "prefetch_queue"


def test_a_queue_that_pads_has_a_name_of_its_own() -> None:
    assert PaddingFIFOQueue(1, [torch.float32]).name == "padding_fifo_queue"


def test_one_batch_waits_for_the_iterating_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    queues: list[ElementQueue] = []

    class Noting(ElementQueue):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            queues.append(self)

    monkeypatch.setattr(enqueue, "ElementQueue", Noting)
    assert [int(batch["x"]) for batch in prefetch({"x": torch.tensor(number)} for number in range(3))] == [0, 1, 2]
    assert [(queue.name, queue.queue.capacity) for queue in queues] == [("prefetch_queue", 1)]


def test_an_empty_queue_is_reported_after_half_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waits: list[float | None] = []

    def wait(self: ElementQueue, timeout_seconds: float | None = None) -> None:
        waits.append(timeout_seconds)
        raise OutOfRangeError("closed") if timeout_seconds is None else DeadlineExceededError("still empty")

    monkeypatch.setattr(ElementQueue, "dequeue_structure", wait)
    take, _ = enqueue_dicts_with_queue_return(lambda: {"x": torch.ones(1)})
    with caplog.at_level(logging.WARNING), pytest.raises(OutOfRangeError):
        take()
    assert waits == [30, None]
    assert "queue 'prefetch_queue' was empty for 30 s" in caplog.text


def test_a_runner_waits_a_minute_for_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    join = threading.Thread.join

    def noting(self: threading.Thread, timeout: float | None = None) -> None:
        assert timeout is not None
        waits.append(round(timeout))
        join(self, timeout)

    queue = queue_of_dicts()
    runner = MultiQueueRunner(queue.queues, [queue.enqueue_op])
    runner.start()
    monkeypatch.setattr(threading.Thread, "join", noting)
    runner.stop()
    assert waits == [60]
