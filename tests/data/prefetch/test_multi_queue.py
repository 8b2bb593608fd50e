"""Elements on several devices: split, moved together, merged in order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from monolith.data import MultiFIFOQueue, MultiQueueRunner, enqueue_dicts_with_queue_return
from monolith.data.prefetch import ElementQueue
from monolith.errors import CancelledError, OutOfRangeError
from monolith.tensors import Ragged

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Mixed:
    """Stands for an element with tensors on a GPU where there is none: says that those at odd places are."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors

    def get_tensors(self) -> list[Tensor]:
        return self._tensors

    def gpu_tensors(self) -> list[Tensor]:
        return self._tensors[1::2]

    def structure(self) -> list[Tensor]:
        return self._tensors


def numbered(first: int, size: int = 4) -> Mixed:
    return Mixed([torch.tensor(first * 10 + index) for index in range(size)])


def queue_of(capacity: int = 2) -> ElementQueue:
    numbers = iter(range(10_000))
    return ElementQueue(lambda: numbered(next(numbers)), capacity, "mixed")


def test_a_cpu_queue_alone_is_the_queue() -> None:
    queue = MultiFIFOQueue([torch.ones(1), torch.zeros(2)])
    assert queue.queues == [queue.queue]
    queue.enqueue_op()
    assert queue.size() == queue.queue.size() == 1


def test_several_queues_are_no_single_one() -> None:
    queue = queue_of()
    assert len(queue.queues) == 1
    queue.enqueue_op()
    assert [each.name for each in queue.queues] == ["mixed", "mixed_gpu"]
    with pytest.raises(NotImplementedError, match="'mixed' consists of several queues"):
        _ = queue.queue
    runner = MultiQueueRunner(queue.queues, [queue.enqueue_op])
    with pytest.raises(NotImplementedError, match="fills several queues"):
        _ = runner.queue
    assert runner.name == "mixed"
    assert queue.size() == 1
    assert [each.size() for each in queue.queues] == [1, 1]


def test_tensors_are_merged_in_their_order() -> None:
    queue = queue_of()
    queue.enqueue_op()
    queue.enqueue_op()
    assert [int(tensor) for tensor in queue.dequeue()] == [0, 1, 2, 3]
    assert [int(tensor) for tensor in queue.dequeue_structure()] == [10, 11, 12, 13]


def test_elements_with_and_without_gpu_tensors_may_alternate() -> None:
    queue = queue_of(capacity=8)
    sizes = [1, 1, 4, 1, 3, 0, 2]  # of size 0 and 1 nothing is on the GPU, so the second queue is born third
    for number, size in enumerate(sizes):
        queue.enqueue(numbered(number, size))
        assert len({each.size() for each in queue.queues}) == 1
    for number, size in enumerate(sizes):
        assert [int(tensor) for tensor in queue.dequeue()] == [number * 10 + index for index in range(size)]


def test_many_threads_see_matching_halves() -> None:
    queue = queue_of(capacity=3)

    def take(count: int) -> list[list[int]]:
        return [[int(tensor) for tensor in queue.dequeue(20)] for _ in range(count)]

    with MultiQueueRunner(queue.queues, [queue.enqueue_op] * 3), ThreadPoolExecutor(4) as pool:
        taken = [element for each in [pool.submit(take, 100) for _ in range(4)] for element in each.result(30)]
    assert all(element == list(range(element[0], element[0] + 4)) for element in taken)
    assert len({element[0] for element in taken}) == 400


def test_closing_the_first_queue_ends_both() -> None:
    queue = queue_of()
    first = queue.queues[0]
    queue.enqueue_op()
    first.close(cancel_pending_enqueues=True)
    with pytest.raises(CancelledError):
        queue.enqueue_op()
    assert len(queue.dequeue()) == 4
    with pytest.raises(OutOfRangeError):
        queue.dequeue()


def test_what_could_not_be_added_is_the_next_after_reopening() -> None:
    queue = queue_of(capacity=1)
    queue.queues[0].close()
    for _ in range(2):
        with pytest.raises(CancelledError):
            queue.enqueue_op()
    queue.queues[0].reopen()
    for expected in (0, 10):
        queue.enqueue_op()
        assert int(queue.dequeue()[0]) == expected


def test_clearing_drops_what_waits_and_what_was_kept() -> None:
    queue = queue_of(capacity=2)
    queue.enqueue_op()
    queue.queues[0].close()
    with pytest.raises(CancelledError):
        queue.enqueue_op()
    queue.clear()
    assert [each.size() for each in queue.queues] == [0, 0]
    queue.queues[0].reopen()
    queue.enqueue_op()
    assert int(queue.dequeue()[0]) == 20


@NO_GPU
def test_cuda_tensors_wait_in_their_own_queue() -> None:
    a, b, c = torch.zeros(3), torch.ones(3, device="cuda"), torch.full((2,), 2.0)
    queue = MultiFIFOQueue([a, b, c])
    assert len(queue.queues) == 2
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
