"""Ranks end together, with the first that has no more data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from hooks.sessions import FakeSession
from monolith import collective
from monolith.checkpoint.state_dicts import model_state
from monolith.hook import Hook
from monolith.hooks import EofHook
from monolith.testing import ExampleTask
from monolith.train import (
    EofAwareTask,
    PipelineConfig,
    Session,
    Spec,
    Task,
    Trainer,
    TrainerConfig,
    get_current_session,
)


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    collective.init()
    yield
    collective.shutdown()


class Adding(Task):
    """Adds its features to the global step, as the tasks of the original's tests do."""

    def __init__(self, elements: Sequence[Any]) -> None:
        super().__init__()
        self.elements = elements
        self.seen: list[Any] = []

    def input_fn(self, mode: Any) -> Any:
        return self.elements

    def number_of(self, features: Any) -> int:
        return int(features)

    def model_fn(self, features: Any, mode: Any) -> Spec:
        self.seen.append(features)

        def train_op() -> None:
            get_current_session().state.global_step += self.number_of(features)

        return Spec(train_op=train_op)


class AddingDict(Adding):
    """The same with a dict of features."""

    def number_of(self, features: Any) -> int:
        return int(features["1"])


def test_basic() -> None:
    task = Adding([1, 2, 3])
    assert Trainer(EofAwareTask(task)).train().global_step == 6
    assert task.seen == [1, 2, 3]


def test_dict() -> None:
    task = AddingDict([{"1": number} for number in (1, 2, 3)])
    assert Trainer(EofAwareTask(task)).train().global_step == 6
    assert task.seen == [{"1": 1}, {"1": 2}, {"1": 3}]


@pytest.mark.parametrize("elements", [[], [7]])
def test_little_data(elements: list[int]) -> None:
    assert Trainer(EofAwareTask(Adding(elements))).train().global_step == sum(elements)


def test_only_the_last_batch_has_the_eof_flag_set() -> None:
    task = EofAwareTask(Adding([5, 6, 7]))
    assert list(task.input_fn("train")) == [{"1": 5, "2": False}, {"1": 6, "2": False}, {"1": 7, "2": True}]
    flags = [batch["__EofAwareTask_eof"] for batch in EofAwareTask(AddingDict([{"1": 1}, {"1": 2}])).input_fn("train")]
    assert flags == [False, True]


def test_a_batch_keeps_its_columns_and_becomes_itself_again() -> None:
    inner = ExampleTask()
    source = EofAwareTask(inner).input_fn("train")
    batch = next(iter(source))
    assert list(batch) == ["user", "item", "label", "req_time", "__EofAwareTask_eof"]
    assert len(batch) == 5
    assert batch["user"].shape == (32,)
    with pytest.raises(ValueError, match="batch has no flag '__EofAwareTask_eof'"):
        EofAwareTask(inner).model_fn({"user": 1}, "train")


def test_a_plain_dict_with_the_key_is_understood() -> None:
    task = AddingDict([])
    EofAwareTask(task).model_fn({"1": 4, "__EofAwareTask_eof": torch.tensor(True)}, "train")
    assert task.seen == [{"1": 4}]


@pytest.mark.parametrize("pipeline", [PipelineConfig(), PipelineConfig(prefetch=2, postpush=True)])
def test_training_is_that_of_the_task_itself(pipeline: PipelineConfig) -> None:
    config = TrainerConfig(pipeline=pipeline, deterministic=True)
    plain = Trainer(ExampleTask(), config).train()
    aware = Trainer(EofAwareTask(ExampleTask()), config).train()
    assert aware.global_step == plain.global_step == 20
    assert plain.model is not None
    assert aware.model is not None
    expected = model_state(plain.model)
    for name, value in model_state(aware.model).items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, expected[name]), name


def test_a_killed_run_resumes_with_the_next_batch(tmp_path: Path) -> None:
    config = TrainerConfig(model_dir=str(tmp_path))
    Trainer(EofAwareTask(ExampleTask()), config).train(steps=7)
    assert Trainer(EofAwareTask(ExampleTask()), config).train().global_step == 20


def test_the_hook_comes_first_and_the_tasks_own_follow() -> None:
    own = Hook()

    class WithHooks(Adding):
        def training_hooks(self) -> Sequence[Hook]:
            return [own]

    first, second = EofAwareTask(WithHooks([])).training_hooks()
    assert isinstance(first, EofHook)
    assert second is own


@pytest.mark.parametrize(("flags", "stops"), [([0, 0, 0], False), ([0, 1, 0], True), ([1, 1, 1], True)])
def test_one_rank_stops_all(flags: list[int], stops: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []

    def allgather(tensor: torch.Tensor) -> torch.Tensor:
        asked.append(tensor.tolist())
        return torch.tensor(flags)

    monkeypatch.setattr(collective, "allgather", allgather)
    session = FakeSession()
    EofHook(lambda: False).after_run(session.context())
    assert session.stop_requested == stops
    assert asked == [[0]]


def test_the_rest_is_the_tasks() -> None:
    inner = ExampleTask()
    task = EofAwareTask(inner)
    assert task.task is inner
    assert task.p is inner.p
    assert task.ctx is inner.ctx
    assert task.signatures() == inner.signatures()
    assert list(task.training_chief_hooks()) == list(inner.training_chief_hooks())
    with Session(task) as session:
        assert session.state.model is not None
