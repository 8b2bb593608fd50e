"""A loss that is no number ends training."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from hooks.sessions import FakeSession
from monolith.hooks import NanLossDuringTrainingError, NanTensorHook
from monolith.testing import StepLoop


def session_with(loss: object) -> FakeSession:
    session = FakeSession(global_step=7)
    session.last = SimpleNamespace(loss=loss)  # type: ignore[attr-defined]
    return session


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, torch.tensor(math.nan), torch.tensor(math.inf)])
def test_it_raises(loss: object) -> None:
    with pytest.raises(NanLossDuringTrainingError, match=r"NaN loss during training: .* at step 7; lower the learning"):
        NanTensorHook().after_run(session_with(loss).context())


def test_it_stops_if_it_is_not_to_raise(caplog: pytest.LogCaptureFixture) -> None:
    session = session_with(math.nan)
    NanTensorHook(fail_on_nan_loss=False).after_run(session.context())
    assert session.stop_requested
    assert "NaN loss during training: nan at step 7; stopping" in caplog.text


@pytest.mark.parametrize("loss", [None, 0.0, -3.5, 1e38, torch.tensor(2.0, dtype=torch.float64), torch.tensor([0.5])])
def test_numbers_pass(loss: object) -> None:
    session = session_with(loss)
    NanTensorHook().after_run(session.context())
    NanTensorHook().after_run(FakeSession().context())  # a session that says nothing of its loss
    assert not session.stop_requested


def test_it_looks_at_every_third_step_only() -> None:
    looks: list[int] = []
    with StepLoop([NanTensorHook(every_steps=3, loss=lambda session: looks.append(session.global_step))]) as loop:
        for _ in range(10):
            loop.run(lambda: None)
    assert looks == [3, 6, 9]
    with pytest.raises(ValueError, match="every_steps must be >= 1, got 0"):
        NanTensorHook(every_steps=0)


def test_what_stands_behind_it_is_not_reached() -> None:
    saved: list[int] = []

    class Saver(NanTensorHook):
        def after_run(self, context: object) -> None:
            saved.append(1)

    guard = NanTensorHook(loss=lambda _: math.nan)
    with pytest.raises(NanLossDuringTrainingError), StepLoop([guard, Saver()]) as loop:
        loop.run(lambda: None)
    assert saved == []
