"""Where reading goes on is saved with the step that it belongs to: no batch is lost, and none counts twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from monolith.checkpoint import Saver
from monolith.testing import ExampleTask, NumberedBatches
from monolith.train import Session, SessionState, Spec
from monolith.train._model_step import StepResult
from monolith.train.task import Mode


class InterruptedTask(ExampleTask):
    """Ctrl-C comes in the forward pass of one batch."""

    interrupted_at: int | None = None
    calls = 0

    def model_fn(self, features: Any, mode: Mode) -> Spec:
        self.calls += 1
        if self.calls - 1 == self.interrupted_at:
            raise KeyboardInterrupt
        return super().model_fn(features, mode)


def batch(number: int) -> Any:
    return NumberedBatches(num_batches=100, batch_size=8).make(number)


def saved_position(state: SessionState, folder: Path) -> tuple[int, bytes | None]:
    """Step and position that a run goes on with which is restored from this state."""
    with Saver(folder) as saver:
        saver.save(state)
    with Session(ExampleTask(), restore=Saver(folder).restore) as again:
        return again.global_step, again.state.position()


def test_a_step_that_was_interrupted_before_its_update_leaves_its_batch_to_be_read_again(tmp_path: Path) -> None:
    task = InterruptedTask()
    task.interrupted_at = 2
    with Session(task) as session:
        for number in range(2):
            session.run(batch(number), position=b"%d" % (number + 1))
        with pytest.raises(KeyboardInterrupt):
            session.run(batch(2), position=b"3")
        assert session.is_whole, "it is saved when the run ends"
        assert saved_position(session.state, tmp_path) == (2, b"2")


def test_a_step_interrupted_after_its_update_does_not_count_its_batch_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with Session(ExampleTask()) as session:
        session.run(batch(0), position=b"1")
        monkeypatch.setattr(StepResult, "of", interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.run(batch(1), position=b"2")
        assert session.is_whole
        assert saved_position(session.state, tmp_path) == (2, b"2")


def test_a_step_that_was_interrupted_in_its_update_is_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    with Session(ExampleTask()) as session:
        session.run(batch(0), position=b"1")

        def interrupt(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(next(iter(session.state.optimizers.values())), "step", interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.run(batch(1), position=b"2")
        assert not session.is_whole
        assert session.state.position() == b"1"
