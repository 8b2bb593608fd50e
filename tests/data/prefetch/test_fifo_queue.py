"""Queues of tensor lists: what they take, what they refuse, and where their elements come from."""

from __future__ import annotations

import pytest
import torch

from monolith.data import FIFOQueue, MultiFIFOQueue, PaddingFIFOQueue
from monolith.dependence import RecordedCall, check_ops_dependence
from monolith.errors import DeadlineExceededError, InvalidArgumentError, OutOfRangeError

QUEUES = [FIFOQueue, MultiFIFOQueue]


def test_as_many_shapes_as_types_are_needed() -> None:
    with pytest.raises(ValueError, match="same length as dtypes, received 1 shapes, 2 dtypes"):
        PaddingFIFOQueue(1, [torch.int64, torch.float32], [()])


def test_many_elements_at_a_time_are_not_supported() -> None:
    queue = PaddingFIFOQueue(1, [torch.int64])
    with pytest.raises(NotImplementedError, match="enqueue_many is not supported"):
        queue.enqueue_many(torch.zeros(2, dtype=torch.int64))
    with pytest.raises(NotImplementedError, match="dequeue_many is not supported"):
        queue.dequeue_many(2)


def test_open_dims_differ_from_element_to_element() -> None:
    queue = PaddingFIFOQueue(3, [torch.float32], [(None, 2)])
    for rows in (0, 3):
        queue.enqueue(torch.zeros(rows, 2))
    assert [queue.dequeue().shape for _ in range(2)] == [(0, 2), (3, 2)]  # type: ignore[union-attr]
    assert queue.shapes == [(None, 2)]
    assert queue.dtypes == [torch.float32]


@pytest.mark.parametrize(
    "wrong", [torch.zeros(3), torch.zeros(3, 1), torch.zeros(3, 2, dtype=torch.float64), torch.zeros(1, 3, 2)]
)
def test_other_types_and_shapes_are_refused(wrong: torch.Tensor) -> None:
    queue = PaddingFIFOQueue(3, [torch.float32], [(None, 2)])
    with pytest.raises(ValueError, match=r"expected torch.float32 of shape \(None, 2\) at position 0, got torch.float"):
        queue.enqueue(wrong)
    assert queue.size() == 0


def test_another_number_of_tensors_and_other_things_are_refused() -> None:
    queue = PaddingFIFOQueue(3, [torch.float32, torch.float32])
    with pytest.raises(ValueError, match="expected 2 tensors, got 1"):
        queue.enqueue(torch.zeros(1))
    with pytest.raises(TypeError, match="expected a tensor at position 1, got list"):
        queue.enqueue([torch.zeros(1), [0.0]])  # type: ignore[list-item]


def test_non_contiguous_tensors_and_views_come_out_as_they_went_in() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    queue = FIFOQueue([base.T, base[:, 1], base[:0]])
    queue.enqueue_op()
    taken = queue.dequeue()
    assert [torch.equal(a, b) for a, b in zip(taken, [base.T, base[:, 1], base[:0]], strict=True)] == [True] * 3


@pytest.mark.parametrize("queue_class", QUEUES)
def test_no_list_is_refused(queue_class: type[FIFOQueue | MultiFIFOQueue]) -> None:
    with pytest.raises(ValueError, match="dense_list must be a list of tensors, got None"):
        queue_class(None)  # type: ignore[arg-type]
    for wrong in ((torch.zeros(1),), torch.zeros(1), {"a": torch.zeros(1)}, "ab"):
        with pytest.raises(TypeError, match=f"dense_list must be a list of tensors, got {type(wrong).__name__}"):
            queue_class(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a tensor or a function that makes one at position 1, got float"):
        queue_class([torch.zeros(1), 2.5])  # type: ignore[list-item]


@pytest.mark.parametrize("queue_class", QUEUES)
def test_defaults_and_names(queue_class: type[FIFOQueue | MultiFIFOQueue]) -> None:
    queue = queue_class([torch.zeros(1)])
    assert queue.name == "prefetch_queue"
    assert queue.queue.capacity == 2
    assert queue.enqueue_op.name == "prefetch_queue_enqueue"
    assert queue_class([torch.zeros(1)], 5, "mine").name == "mine"


@pytest.mark.parametrize("queue_class", QUEUES)
def test_a_single_tensor_comes_as_a_list_and_an_empty_list_as_one(
    queue_class: type[FIFOQueue | MultiFIFOQueue],
) -> None:
    for sources in ([torch.ones(2)], []):
        queue = queue_class(sources)
        queue.enqueue_op()
        assert len(queue.dequeue()) == len(sources)


@pytest.mark.parametrize("queue_class", QUEUES)
def test_functions_make_a_tensor_for_each_element(queue_class: type[FIFOQueue | MultiFIFOQueue]) -> None:
    numbers = iter(range(9))
    queue = queue_class([lambda: torch.tensor(next(numbers)), torch.tensor(-1)], capacity=3)
    for _ in range(3):
        queue.enqueue_op()
    assert [[int(tensor) for tensor in queue.dequeue()] for _ in range(3)] == [[0, -1], [1, -1], [2, -1]]
    with pytest.raises(DeadlineExceededError):
        queue.dequeue(timeout_seconds=0)
    queue.queue.close()
    with pytest.raises(OutOfRangeError):
        queue.dequeue()


@pytest.mark.parametrize("queue_class", QUEUES)
def test_the_enqueue_call_tracks_what_it_reads(queue_class: type[FIFOQueue | MultiFIFOQueue]) -> None:
    source = RecordedCall(lambda: torch.ones(1), name="source")
    leaf = torch.ones(1, requires_grad=True)
    queue = queue_class([source, leaf * 2, lambda: torch.zeros(1)])
    for read in (source, leaf):
        with pytest.raises(InvalidArgumentError, match="prefetch_queue_enqueue] depend on ops"):
            check_ops_dependence(queue.enqueue_op, read)
    check_ops_dependence(queue.enqueue_op, torch.ones(1, requires_grad=True))
