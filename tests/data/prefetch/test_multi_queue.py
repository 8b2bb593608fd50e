"""Elements with tensors on several devices: one item of one queue, staged by its producer for its consumer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from monolith.data import MultiFIFOQueue, MultiQueueRunner, enqueue_dicts_with_queue_return
from monolith.data.prefetch import ElementQueue, StagedTensors
from monolith.data.prefetch.element import Element
from monolith.errors import CancelledError, OutOfRangeError
from monolith.tensors import Ragged

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Staging:
    """Stands for `StagedTensors` where there is no GPU: records what is staged and received, and by which thread."""

    def __init__(self) -> None:
        self.staged: list[tuple[str, list[int]]] = []
        self.received: list[tuple[str, list[int]]] = []

    def __call__(self, tensors: Sequence[Tensor]) -> StagedTensors:
        staging, numbers = self, [int(tensor) for tensor in tensors]
        self.staged.append((threading.current_thread().name, numbers))

        class Noting(StagedTensors):
            def receive(self) -> list[Tensor]:
                staging.received.append((threading.current_thread().name, numbers))
                return super().receive()

        return Noting(tensors)


@pytest.fixture
def staging(monkeypatch: pytest.MonkeyPatch) -> Staging:
    staging = Staging()
    monkeypatch.setattr("monolith.data.prefetch.element.StagedTensors", staging)
    return staging


def numbered(first: int, size: int = 4) -> Element:
    """An element whose tensors at odd positions count as those on a GPU."""
    tensors = [torch.tensor(first * 10 + index) for index in range(size)]
    return Element(tensors, tensors[1::2])


def queue_of(capacity: int = 2) -> ElementQueue:
    numbers = iter(range(10_000))
    return ElementQueue(lambda: numbered(next(numbers)), capacity, "mixed")


def test_elements_for_several_devices_have_one_queue() -> None:
    for queue in (MultiFIFOQueue([torch.ones(1), torch.zeros(2)]), queue_of()):
        assert queue.queues == [queue.queue]
        queue.enqueue_op()
        assert queue.size() == queue.queue.size() == 1
        assert MultiQueueRunner(queue.queues, [queue.enqueue_op]).queue is queue.queue


def test_tensors_come_in_their_order() -> None:
    queue = queue_of()
    queue.enqueue_op()
    queue.enqueue_op()
    assert [int(tensor) for tensor in queue.dequeue()] == [0, 1, 2, 3]
    assert [int(tensor) for tensor in queue.dequeue_structure()] == [10, 11, 12, 13]


def test_the_producer_stages_the_gpu_tensors_and_the_consumer_receives_them(staging: Staging) -> None:
    queue = queue_of(capacity=8)
    sizes = [1, 4, 1, 3, 0]  # of size 0 and 1 nothing is on the GPU

    def produce() -> None:
        for number, size in enumerate(sizes):
            queue.enqueue(numbered(number, size))

    producer = threading.Thread(target=produce, name="producer")
    producer.start()
    producer.join()
    assert staging.staged == [("producer", [11, 13]), ("producer", [31])]
    assert staging.received == []
    for number, size in enumerate(sizes):
        assert [int(tensor) for tensor in queue.dequeue()] == [number * 10 + index for index in range(size)]
    assert staging.received == [(threading.current_thread().name, numbers) for _, numbers in staging.staged]


def test_many_threads_see_tensors_that_belong_together(staging: Staging) -> None:
    queue = queue_of(capacity=3)

    def take(count: int) -> list[list[int]]:
        return [[int(tensor) for tensor in queue.dequeue(20)] for _ in range(count)]

    with MultiQueueRunner(queue, [queue.enqueue_op] * 3), ThreadPoolExecutor(4) as pool:
        taken = [element for each in [pool.submit(take, 100) for _ in range(4)] for element in each.result(30)]
    assert all(element == list(range(element[0], element[0] + 4)) for element in taken)
    assert len({element[0] for element in taken}) == 400
    received = sorted(numbers for _, numbers in staging.received)
    assert received == sorted([element[1], element[3]] for element in taken)


def test_a_closed_queue_ends() -> None:
    queue = queue_of()
    queue.enqueue_op()
    queue.queues[0].close(cancel_pending_enqueues=True)
    with pytest.raises(CancelledError):
        queue.enqueue_op()
    assert len(queue.dequeue()) == 4
    with pytest.raises(OutOfRangeError):
        queue.dequeue()


def test_what_could_not_be_added_is_the_next_after_reopening() -> None:
    queue = queue_of(capacity=1)
    queue.close()
    for _ in range(2):
        with pytest.raises(CancelledError):
            queue.enqueue_op()
    queue.reopen()
    for expected in (0, 10):
        queue.enqueue_op()
        assert int(queue.dequeue()[0]) == expected


def test_clearing_drops_what_waits_and_what_was_kept() -> None:
    queue = queue_of(capacity=2)
    queue.enqueue_op()
    queue.close()
    with pytest.raises(CancelledError):
        queue.enqueue_op()
    queue.clear()
    assert queue.size() == 0
    queue.reopen()
    queue.enqueue_op()
    assert int(queue.dequeue()[0]) == 20


@NO_GPU
def test_cuda_tensors_come_on_their_device() -> None:
    a, b, c = torch.zeros(3), torch.ones(3, device="cuda"), torch.full((2,), 2.0)
    queue = MultiFIFOQueue([a, b, c])
    queue.enqueue_op()
    taken = queue.dequeue()
    assert [tensor.device.type for tensor in taken] == ["cpu", "cuda", "cpu"]
    assert [float(tensor[0]) for tensor in taken] == [0.0, 1.0, 2.0]


@NO_GPU
def test_cuda_structures_made_on_a_side_stream_are_ready_when_used() -> None:
    size = 1 << 22
    numbers = iter(range(200))
    streams = set()

    def make() -> dict[str, Any]:
        number = next(numbers)
        streams.add(torch.cuda.current_stream().cuda_stream)
        x = torch.zeros(size, device="cuda")
        for _ in range(20):  # long enough that a consumer who does not wait sees it unfinished
            x += 1
        ids = Ragged.from_lists([[number], []]).to("cuda")
        return {"x": x + number, "cpu": torch.tensor(number), "ids": ids, "step": number}

    torch.cuda.init()  # type: ignore[no-untyped-call]
    take, queue = enqueue_dicts_with_queue_return(make, 2)
    assert queue is not None
    with MultiQueueRunner(queue.queues, [queue.enqueue_op]):
        for number in range(100):
            batch = take()
            assert batch["step"] == int(batch["cpu"]) == number
            assert batch["ids"].to_lists() == [[number], []]
            assert torch.all(batch["x"] == 20 + number)
            del batch
    assert torch.cuda.current_stream().cuda_stream not in streams
