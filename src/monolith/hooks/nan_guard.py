"""Ends training when the loss is not finite, before the model is saved."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from monolith.hook import Hook
from monolith.hooks.last_loss import last_loss

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.hook import HookedSession, StepContext

__all__ = ["NanLossDuringTrainingError", "NanTensorHook"]

_log = logging.getLogger(__name__)


class NanLossDuringTrainingError(RuntimeError):
    """The loss became NaN or infinite; the training since the last checkpoint is lost."""


class NanTensorHook(Hook):
    """Checks the loss after each step. It precedes the saver, so that a broken model is not saved.

    Args:
        fail_on_nan_loss: Whether to raise; otherwise the hook requests a stop.
        every_steps: Check only every `every_steps` steps: reading the loss waits for the GPU.
        loss: Reads the loss of the last step; by default from the session.
    """

    def __init__(
        self,
        *,
        fail_on_nan_loss: bool = True,
        every_steps: int = 1,
        loss: Callable[[HookedSession], float | None] = last_loss,
    ) -> None:
        if every_steps < 1:
            raise ValueError(f"NanTensorHook: every_steps must be >= 1, got {every_steps}")
        self._fail = fail_on_nan_loss
        self._every_steps = every_steps
        self._loss = loss
        self._num_steps = 0

    def after_run(self, context: StepContext) -> None:
        """Raises or stops if the loss is not finite.

        Raises:
            NanLossDuringTrainingError: The loss is not finite, and `fail_on_nan_loss` is set.
        """
        self._num_steps += 1
        if self._num_steps % self._every_steps:
            return
        loss = self._loss(context.session)
        if loss is None or math.isfinite(loss):
            return
        message = f"NaN loss during training: {loss} at step {context.global_step}"
        if self._fail:
            raise NanLossDuringTrainingError(f"{message}; lower the learning rate, clip gradients or check the samples")
        _log.error("%s; stopping", message)
        context.request_stop()
