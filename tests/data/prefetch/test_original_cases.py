"""Every case of the original's test of its prefetch queue, the one that its twin shadowed included."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from monolith.data import FIFOQueue, PaddingFIFOQueue, enqueue_dicts_with_queue_return
from monolith.dependence import RecordedCall
from monolith.hooks import EnqueueHook
from monolith.tensors import NestedTensors, Ragged
from monolith.testing import StepLoop

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=NO_GPU)]


class TestGPUCompatiblePaddingFIFOQueue:
    @pytest.mark.parametrize("device", DEVICES)
    def test_enqueue_and_dequeue(self, device: str) -> None:
        queue = PaddingFIFOQueue(10, [torch.float32], [()], device=device)
        for value in (10.0, 20.0, 30.0):
            queue.enqueue(torch.tensor(value, device=device))
        taken = [queue.dequeue() for _ in range(3)]
        assert all(isinstance(tensor, torch.Tensor) and tensor.device.type == device for tensor in taken)
        assert [float(tensor + 1) for tensor in taken] == [11.0, 21.0, 31.0]  # type: ignore[operator]

    @NO_GPU
    def test_gpu_queue_cpu_tensor(self) -> None:
        queue = PaddingFIFOQueue(10, [torch.float32], [()], device="cuda")
        for value in (10.0, 20.0):
            queue.enqueue(torch.tensor(value))
        first, second = queue.dequeue(), queue.dequeue()
        assert isinstance(first, torch.Tensor)
        assert isinstance(second, torch.Tensor)
        assert first.is_cuda
        assert float(first.cpu() + second.cpu()) == 30.0

    def test_multi_enqueue_and_dequeue(self) -> None:
        queue = PaddingFIFOQueue(10, [torch.int32, torch.float32], [(), ()])
        elements = [(5, 10.0), (10, 20.0), (15, 30.0)]
        for number, value in elements:
            queue.enqueue((torch.tensor(number, dtype=torch.int32), torch.tensor(value)))
        for number, value in elements:
            taken_number, taken_value = queue.dequeue()
            assert (int(taken_number), float(taken_value)) == (number, value)

    @pytest.mark.parametrize("device", DEVICES)
    def test_identity_helper(self, device: str) -> None:
        queue = PaddingFIFOQueue(2, [torch.int64], [()], device=device)
        queue.enqueue(torch.tensor(2, device=device).clone())
        assert int(queue.dequeue()) == 2  # type: ignore[arg-type]


class TestFIFOQueue:
    def test_fifo_queue_data(self) -> None:
        dense, ragged = torch.tensor([1.0, 2.0]), Ragged.from_lists([[1, 2], [], [3]])
        nested = NestedTensors([dense, ragged])
        queue = FIFOQueue(list(nested.get_tensors()), capacity=1)
        queue.enqueue_op()
        taken_dense, taken_ragged = nested.get_nested_result(queue.dequeue())
        assert torch.equal(taken_dense, dense)
        assert taken_ragged.equal(ragged)

    def test_fifo_queue_capacity(self) -> None:
        numbers = iter(range(4))
        queue = FIFOQueue([lambda: torch.tensor(next(numbers))], capacity=4)
        for _ in range(4):
            queue.enqueue_op()
        assert queue.size() == 4
        assert [queue.dequeue() for _ in range(4)] == [[torch.tensor(number)] for number in range(4)]


class TestPrefetch:
    def test_dicts_of_dense_and_ragged_through_a_queue_of_three(self) -> None:
        numbers = iter(range(100))

        def make() -> tuple[dict[str, Any], dict[str, Any]]:
            number = next(numbers)
            return {"dense": torch.full((2,), float(number))}, {
                "ragged": Ragged.from_lists([[number], [], [7, number]])
            }

        take, queue = enqueue_dicts_with_queue_return(make, capacity=3)
        assert queue is not None
        for cycle in range(4):
            for _ in range(3):
                queue.enqueue_op()
            assert queue.size() == 3
            for number in range(3 * cycle, 3 * cycle + 3):
                dense, ragged = take()
                assert dense["dense"].tolist() == [number, number]
                assert ragged["ragged"].to_lists() == [[number], [], [7, number]]

    def test_enqueue_dicts_with_queue_return(self) -> None:
        nested = {"a": torch.ones(1), "b": {"c": torch.tensor([2, 3]), "name": "hi", "nothing": None}}
        take, queue = enqueue_dicts_with_queue_return(lambda: nested)
        assert queue is not None
        queue.enqueue_op()
        taken = take()
        assert taken["b"]["name"] == "hi"
        assert taken["b"]["nothing"] is None
        assert torch.equal(taken["a"], torch.ones(1))
        assert torch.equal(taken["b"]["c"], torch.tensor([2, 3]))

    def test_enqueue_dicts_with_control_flow(self) -> None:
        v = torch.tensor(0)

        def make() -> dict[str, torch.Tensor]:
            v.add_(1)
            return {"x": torch.tensor(5)}

        take, queue = enqueue_dicts_with_queue_return(RecordedCall(make, name="make"))
        assert queue is not None
        assert int(v) == 0, "nothing runs before it is enqueued"
        queue.enqueue_op()
        assert int(v) == 1
        assert int(take()["x"]) == 5
        assert int(v) == 1, "taking does not make another one"

    def test_enqueue_with_zero_capacity(self) -> None:
        def make() -> dict[str, torch.Tensor]:
            return {"x": torch.tensor([1, 2])}

        take, queue = enqueue_dicts_with_queue_return(make, capacity=0)
        assert queue is None
        assert take is make
        assert take()["x"].tolist() == [1, 2]

    def test_prefetch_while_predicting(self) -> None:
        rows = iter(range(20))
        take, queue = enqueue_dicts_with_queue_return(lambda: {"x": torch.tensor(next(rows))})
        assert queue is not None
        with StepLoop([EnqueueHook(queue)]) as loop:
            predictions = [loop.run(lambda batch=batch: int(batch["x"])) for batch in take]  # type: ignore[attr-defined, misc]
        assert predictions == list(range(20))
