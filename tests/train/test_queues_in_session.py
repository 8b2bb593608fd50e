"""Queues and asynchronous functions under a session, as the original's tests use them under an estimator."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from monolith.data.prefetch import enqueue_dicts_with_queue_return
from monolith.errors import OutOfRangeError
from monolith.hook import Hook
from monolith.hooks import EnqueueHook
from monolith.train import Session, Spec, Task, Trainer


class Numbers(Task):
    """Predicts what a queue brings."""

    def __init__(self, params: Any = None) -> None:
        super().__init__(params)
        numbers = iter(range(20))
        self.take, queue = enqueue_dicts_with_queue_return(lambda: {"x": torch.tensor(next(numbers))}, capacity=3)
        assert queue is not None
        self.hook = EnqueueHook(queue)

    def input_fn(self, mode: Any) -> Any:
        return range(20)

    def training_hooks(self) -> list[Hook]:
        return [self.hook]

    def model_fn(self, features: Any, mode: Any) -> Spec:
        return Spec(predictions=self.take()["x"], train_op=lambda: None)


def test_predictions_come_through_a_prefetch_queue() -> None:
    task = Numbers()
    with Session(task, mode="predict", hooks=[task.hook]) as session:
        made = [int(session.run(number).predictions) for number in task.input_fn("predict")]
        with pytest.raises(OutOfRangeError):
            session.run(20)
    assert made == list(range(20))
    assert not task.hook.runner.threads


def test_the_end_of_a_queue_ends_training() -> None:
    class Endless(Numbers):
        def input_fn(self, mode: Any) -> Any:
            return iter(int, 1)

        def model_fn(self, features: Any, mode: Any) -> Spec:
            spec = super().model_fn(features, mode)
            seen.append(int(spec.predictions))
            return spec

    seen: list[int] = []
    Trainer(Endless()).train()
    assert seen == list(range(20))


def test_an_error_of_a_step_ends_the_thread_of_the_queue() -> None:
    task = Numbers()
    with pytest.raises(ValueError, match="mine"), Session(task, hooks=[task.hook]):
        raise ValueError("mine")
    assert not task.hook.runner.threads


class Adding(Task):
    """Adds one to a number, by an asynchronous function or at once."""

    is_async = True

    def build(self) -> None:
        self.value = 0
        self.add_op = self.ctx.add_async_function(self.add, is_async=self.is_async)

    def add(self) -> None:
        self.value += 1

    def model_fn(self, features: Any, mode: Any) -> Spec:
        return Spec(train_op=self.add_op)


def test_after_two_runs_an_asynchronous_function_ran_once() -> None:
    task = Adding()
    with Session(task) as session:
        session.run(0)
        assert task.value == 0
        session.run(0)
        assert task.value == 1
    assert task.value == 2, "the end runs what is left"


def test_a_synchronous_task_runs_immediately() -> None:
    task = Adding()
    task.is_async = False
    with Session(task) as session:
        session.run(0)
        assert task.value == 1


def test_a_cut_runs_what_is_left() -> None:
    task = Adding()
    with Session(task) as session:
        session.run(0)
        session.state.settle()
        assert task.value == 1
