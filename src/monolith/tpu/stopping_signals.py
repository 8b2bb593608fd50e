"""Stopping signals: batches that carry an end-of-data flag, and the hook that stops the run on it.

The data is followed by an endless sequence of empty batches with the signal; the step of the first one changes nothing,
and the run stops after it, with a last checkpoint. The input itself never ends, so that a step that was started on the
devices always has a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from monolith.data import Dataset, StageReading
from monolith.errors import InvalidArgumentError
from monolith.hook import Hook
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from monolith.data import Reading
    from monolith.hook import StepContext

STOPPING_SIGNAL: Final = "stopping_signal"
"""The column of the signal: bool [B]."""


class SignalledBatch(Mapping[str, Any]):
    """A batch with the signal as one more column; keeps the batch itself, which may have more than its columns."""

    __slots__ = ("features", "is_stop", "num_rows")

    def __init__(self, features: Mapping[str, Any], num_rows: int, *, is_stop: bool) -> None:
        if STOPPING_SIGNAL in features:
            raise InvalidArgumentError(f"tpu: column {STOPPING_SIGNAL!r} of a batch is the signal's; rename it")
        self.features = features
        self.num_rows = num_rows
        self.is_stop = is_stop

    def __getitem__(self, name: str) -> Any:
        return torch.full((self.num_rows,), self.is_stop) if name == STOPPING_SIGNAL else self.features[name]

    def __iter__(self) -> Iterator[str]:
        yield from self.features
        yield STOPPING_SIGNAL

    def __len__(self) -> int:
        return len(self.features) + 1


class EndOfStreamHook(Hook):
    """Stops the run after the step that met the signal.

    Args:
        has_stopped: Whether the last batch had the signal.
    """

    def __init__(self, has_stopped: Callable[[], bool]) -> None:
        self._has_stopped = has_stopped

    def after_run(self, context: StepContext) -> None:
        """Stops the run if the batch has the signal."""
        if self._has_stopped():
            context.request_stop()


def with_stopping_signals(source: Dataset[Any] | Iterable[Any]) -> Dataset[SignalledBatch] | Iterator[SignalledBatch]:
    """Returns the batches of a source with the signal off, then endless empty ones with the signal on.

    An empty source yields nothing, as the shape of an empty batch is unknown.
    """
    return _Signalled(source) if isinstance(source, Dataset) else _signalled(iter(source))


class _Signalled(Dataset[SignalledBatch]):
    """Dataset with signals. Positions are those of the source, so that a run without signals can resume from them."""

    def __init__(self, source: Dataset[Any]) -> None:
        self._source = source

    def __repr__(self) -> str:
        return f"with_stopping_signals({self._source!r})"

    def read(self, position: bytes | None = None) -> Reading[SignalledBatch]:
        """Reads from a position of the source."""
        return _SignalledReading(self._source.read(position))


class _SignalledReading(StageReading[Any, SignalledBatch]):
    def __init__(self, source: Reading[Any]) -> None:
        super().__init__(source)
        self._batches = _signalled(source)

    def __next__(self) -> SignalledBatch:
        return next(self._batches)


def _signalled(batches: Iterator[Any]) -> Iterator[SignalledBatch]:
    last: SignalledBatch | None = None
    for batch in batches:
        last = _with_signal(batch, is_stop=False)
        yield last
    if last is None:
        return
    empty = _with_signal({name: _empty(values) for name, values in last.features.items()}, is_stop=True)
    empty.num_rows = last.num_rows
    while True:
        yield empty


def _with_signal(batch: Any, *, is_stop: bool) -> SignalledBatch:
    if not isinstance(batch, Mapping):
        raise InvalidArgumentError(
            f"tpu: stopping signals are a column of batches, which must be mappings, got {type(batch).__name__}"
        )
    from_columns = next((_rows(values) for values in batch.values()), 0)
    return SignalledBatch(batch, getattr(batch, "num_rows", from_columns), is_stop=is_stop)


def _rows(values: Any) -> int:
    return values.num_rows if isinstance(values, Ragged) else len(values)


def _empty(values: Any) -> Any:
    """Lists without an id, numbers that are zero; of the same rows, shape and type."""
    if isinstance(values, Tensor):
        return torch.zeros_like(values)
    if isinstance(values, Ragged) and isinstance(values.values, Tensor):
        return Ragged(values.values[:0], torch.zeros_like(values.row_splits))
    return values
