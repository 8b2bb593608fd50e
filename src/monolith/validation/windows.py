"""Metrics of predictions, by windows of event time and in total."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from monolith.metrics import BinnedAUC, Calibration, ExactAUC, LogLoss

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Scores", "Window", "WindowedScores"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Metrics of predictions; NaN where undefined, such as an AUC without a click."""

    examples: int
    auc: float
    log_loss: float
    calibration: float
    """Predicted clicks per click: 1 is ideal, 1.1 predicts 10 % too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window(Scores):
    """The scores of a window of event time."""

    begin: int
    """Start of the window, Unix seconds."""
    end: int


class _Piece(NamedTuple):
    predictions: Tensor
    labels: Tensor


class WindowedScores:
    """Accumulator of predictions in approximate order of time; a window is closed once no example can fall into it.

    Only predictions of open windows are kept, so that memory does not grow with the stream.

    Args:
        begin: Unix seconds at which the first window begins.
        seconds: Length of a window.
        disorder_seconds: How much older than the newest time an example may be; later ones count in the oldest open
            window.
    """

    def __init__(self, *, begin: int, seconds: int, disorder_seconds: float) -> None:
        self._begin = begin
        self._seconds = seconds
        self._disorder_seconds = disorder_seconds
        self._open: dict[int, list[_Piece]] = {}
        self._next = 0
        """Windows before this one are closed."""
        self._newest = begin
        self.windows: list[Window] = []
        """Closed windows that are not empty."""
        self._examples = 0
        # Binned, because an exact AUC would keep a number for every example of the stream.
        self._auc, self._log_loss, self._calibration = BinnedAUC(), LogLoss(), Calibration()

    def add(self, times: Tensor, predictions: Tensor, labels: Tensor) -> None:
        """Adds examples: Unix seconds, probabilities and labels (0 or 1), each [B]."""
        numbers = ((times - self._begin) // self._seconds).clamp_min(self._next)
        first, last = int(numbers.min()), int(numbers.max())
        for number in range(first, last + 1):
            chosen = numbers == number
            if first == last or bool(chosen.any()):
                self._open.setdefault(number, []).append(_Piece(predictions[chosen], labels[chosen]))
        self._newest = max(self._newest, int(times.max()))
        self._close_before(int((self._newest - self._disorder_seconds - self._begin) // self._seconds))

    def close(self) -> Scores:
        """Closes all windows; returns the scores of everything."""
        self._close_before(max(self._open, default=-1) + 1)
        return Scores(
            examples=self._examples,
            auc=self._auc.compute(),
            log_loss=self._log_loss.compute(),
            calibration=self._calibration.compute(),
        )

    def _close_before(self, end: int) -> None:
        for number in sorted(number for number in self._open if number < end):
            pieces = self._open.pop(number)
            predictions, labels = (torch.cat(parts) for parts in zip(*pieces, strict=True))
            begin = self._begin + number * self._seconds
            self.windows.append(self._window(predictions, labels, begin))
        self._next = max(self._next, end)

    def _window(self, predictions: Tensor, labels: Tensor, begin: int) -> Window:
        auc, log_loss, calibration = ExactAUC(), LogLoss(), Calibration()
        for metric in (auc, log_loss, calibration, self._auc):
            metric.update(predictions, labels)
        self._log_loss.merge(log_loss)
        self._calibration.merge(calibration)
        self._examples += len(labels)
        return Window(
            begin=begin,
            end=begin + self._seconds,
            examples=len(labels),
            auc=auc.compute(),
            log_loss=log_loss.compute(),
            calibration=calibration.compute(),
        )
