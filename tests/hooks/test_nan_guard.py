"""A loss that is no number ends training."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from hooks.sessions import FakeSession
from monolith.hooks import NanLossDuringTrainingError, NanTensorHook
from monolith.testing import StepLoop
from monolith.train import StepResult


@dataclass(frozen=True)
class Step:
    """A step of a loop of one's own, whose loss may be a plain number."""

    loss: Tensor | float | None
    predictions: None = None
    label: None = None
    num_examples: int = 0


def session_with(loss: Tensor | float | None) -> FakeSession:
    return FakeSession(global_step=7, last=Step(loss))


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, torch.tensor(math.nan), torch.tensor(math.inf)])
def test_it_raises(loss: Tensor | float) -> None:
    with pytest.raises(NanLossDuringTrainingError, match=r"NaN loss during training: .* at step 7; lower the learning"):
        NanTensorHook().after_run(session_with(loss).context())


def test_it_stops_if_it_is_not_to_raise(caplog: pytest.LogCaptureFixture) -> None:
    session = session_with(math.nan)
    NanTensorHook(fail_on_nan_loss=False).after_run(session.context())
    assert session.stop_requested
    assert "NaN loss during training: nan at step 7; stopping" in caplog.text


@pytest.mark.parametrize("loss", [None, 0.0, -3.5, 1e38, torch.tensor(2.0, dtype=torch.float64), torch.tensor([0.5])])
def test_numbers_pass(loss: Tensor | float | None) -> None:
    session = session_with(loss)
    NanTensorHook().after_run(session.context())
    NanTensorHook().after_run(FakeSession().context())  # before its first step
    assert not session.stop_requested


def test_the_guard_checks_every_third_step_only() -> None:
    looks: list[int] = []
    with StepLoop([NanTensorHook(every_steps=3, loss=lambda session: looks.append(session.global_step))]) as loop:
        for _ in range(10):
            loop.run(lambda: None)
    assert looks == [3, 6, 9]
    with pytest.raises(ValueError, match="every_steps must be >= 1, got 0"):
        NanTensorHook(every_steps=0)


def test_it_reads_what_the_step_returned() -> None:
    with StepLoop([NanTensorHook(fail_on_nan_loss=False)]) as loop:
        for loss in (0.5, 0.25, math.nan):
            assert not loop.stop_requested
            loop.run(lambda: StepResult(torch.tensor(loss), None, None, num_examples=1))  # noqa: B023 - run at once
    assert loop.stop_requested


def test_hooks_after_the_guard_are_not_reached() -> None:
    saved: list[int] = []

    class Saver(NanTensorHook):
        def after_run(self, context: object) -> None:
            saved.append(1)

    guard = NanTensorHook(loss=lambda _: math.nan)
    with pytest.raises(NanLossDuringTrainingError), StepLoop([guard, Saver()]) as loop:
        loop.run(lambda: None)
    assert saved == []
