"""Results of a progressive validation: metrics of predictions, by windows of event time and in total."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from monolith.metrics import BinnedAUC, Calibration, ExactAUC, LogLoss

if TYPE_CHECKING:
    from torch import Tensor

    from monolith.validation.serving_copy import SyncRule


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

    An example may be `disorder_seconds` older than the newest time; later ones count in the oldest open window.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOutcome:
    """Metrics of one serving copy."""

    rule: SyncRule
    windows: tuple[Window, ...]
    """In the order of time; windows without an example are omitted."""
    total: Scores
    """Metrics over all measured examples. Its AUC is over all pairs, including those of different windows, in 65,536
    bins."""
    num_takes: int
    """Number of times rows were loaded."""
    bytes_taken: int
    """Size of the loaded rows and tombstones, as encoded in a log."""

    @property
    def mean_auc(self) -> float:
        """Mean of the windows' AUCs, each with the same weight; windows without one are ignored."""
        known = [window.auc for window in self.windows if math.isfinite(window.auc)]
        return sum(known) / len(known) if known else math.nan

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values; undefined ones are None."""
        return {
            "rule": _plain(self.rule.to_dict()),
            "mean_auc": _number(self.mean_auc),
            "total": _plain(asdict(self.total)),
            "num_takes": self.num_takes,
            "bytes_taken": self.bytes_taken,
            "windows": [_plain(asdict(window)) for window in self.windows],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationOutcome(Mapping[str, CopyOutcome]):
    """Results of one trained model: its serving copies by name. `str` returns a table of them."""

    copies: dict[str, CopyOutcome]
    examples: int
    """Number of trained examples."""
    rows: int
    """Rows of the trained tables: the maximum over the ends of the windows."""
    memory_bytes: int
    """Memory of the trained tables, likewise: rows, indexes and filters."""
    evicted: int
    """Number of expired rows that were removed."""

    def __getitem__(self, name: str) -> CopyOutcome:
        return self.copies[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.copies)

    def __len__(self) -> int:
        return len(self.copies)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, serializable as JSON."""
        return {
            "examples": self.examples,
            "rows": self.rows,
            "memory_bytes": self.memory_bytes,
            "evicted": self.evicted,
            "copies": {name: copy.to_dict() for name, copy in self.copies.items()},
        }

    def __str__(self) -> str:
        return table_of(self.copies)


def table_of(copies: Mapping[str, CopyOutcome]) -> str:
    """Returns a table with a line for each copy."""
    width = max(map(len, copies), default=0)
    lines = [f"{'':<{width}}  mean AUC  total AUC  log loss  calibration  take-overs        MB"]
    lines += [
        f"{name:<{width}}  {copy.mean_auc:8.4f}  {copy.total.auc:9.4f}  {copy.total.log_loss:8.4f}"
        f"  {copy.total.calibration:11.3f}  {copy.num_takes:10,}  {copy.bytes_taken / 1e6:8.1f}"
        for name, copy in copies.items()
    ]
    return "\n".join(lines)


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: _number(value) if isinstance(value, float) else value for name, value in values.items()}


def _number(value: float) -> float | str | None:
    if math.isinf(value):
        return "infinite"
    return None if math.isnan(value) else value
