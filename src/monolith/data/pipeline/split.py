"""Stages that choose rows by their values: `Dataset.split` into parts that share no row, and `Dataset.deduplicate`."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from monolith.data.batch import Batch
from monolith.data.operators.row_draws import row_keys
from monolith.data.pipeline.draws import key_of, mix
from monolith.data.pipeline.stage import Stage, StageReading, StageSource, resumed, whole_number
from monolith.data.position import encode_position, nested
from monolith.data.rows import has_rows, keep_rows, num_rows_of, select_rows
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from monolith.data.pipeline.stage import Reading

    Numbers: TypeAlias = npt.NDArray[np.int64]


_KIND = "split"


def check_ratios(name: str, ratios: Sequence[float]) -> list[float]:
    """Returns shares that add up to 1, in proportion to the ratios."""
    numbers = [float(ratio) for ratio in ratios]
    if not numbers or not all(0 < number < float("inf") for number in numbers):
        raise ValueError(f"{name}: ratios must be positive numbers, at least one, got {list(ratios)}")
    return [number / sum(numbers) for number in numbers]


class Split(Stage[Any, Any]):
    """The rows of one part, counted from 0; `ratios` are the shares of all.

    With `by`, a column of numbers or ids, rows with the same (first) value go to the same part, whatever their order;
    None: by the index of a row in the stream, so the source must not change its order between epochs.
    """

    def __init__(self, ratios: Sequence[float], part: int, *, seed: int = 0, by: str | None = None) -> None:
        shares = np.cumsum([0.0, *check_ratios("split", ratios)])
        self._low, self._high = float(shares[part]), float(shares[part + 1]) if part + 1 < len(ratios) else 1.0
        self._seed = seed
        self._by = by
        self.works_on_shares = by is not None  # an index in the stream is only known to a reader of all of it

    def read(self, source: StageSource[Any], position: bytes | None) -> Reading[Any]:
        """Starts a reading; its position is that of the source, and how many rows it had up to there."""
        return _SplitReading(*resumed(source, position, _KIND, "rows", seed=self._seed, by=self._by), self)

    def identity(self) -> dict[str, Any]:
        """Returns what a position must have been saved with."""
        return {"by": self._by, "seed": self._seed}

    def rows_of(self, element: Any, first_row: int) -> npt.NDArray[np.int64]:
        """Returns the numbers of the element's rows that belong to this part."""
        places = np.arange(first_row, first_row + num_rows_of(element), dtype=np.int64)
        numbers = places if self._by is None else self._values_of(element)
        draws = mix(mix(numbers.view(np.uint64)) ^ key_of(self._seed, 1)) >> np.uint64(11)
        shares = draws.astype(np.float64) * 2.0**-53
        return np.flatnonzero((shares >= self._low) & (shares < self._high))

    def _values_of(self, element: Any) -> npt.NDArray[np.int64]:
        if not isinstance(element, Batch):
            raise TypeError(f"split: by={self._by!r} is for elements that are a Batch, got a {type(element).__name__}")
        values = element[str(self._by)]
        if isinstance(values, Ragged):
            values = values.to_padded(length=1)
        if not isinstance(values, torch.Tensor) or values.is_floating_point() or values.shape[1:].numel() != 1:
            raise TypeError(f"split: column {self._by!r} must have one integer or id in each row")
        numbers: npt.NDArray[np.int64] = values.reshape(-1).to(torch.int64).numpy(force=True)
        return np.ascontiguousarray(numbers)

    def __repr__(self) -> str:
        by = "" if self._by is None else f", by={self._by!r}"
        return f"split({self._low:.3g} to {self._high:.3g}{by})"


class _SplitReading(StageReading[Any, Any]):
    def __init__(self, source: Reading[Any], rows: int, split: Split) -> None:
        super().__init__(source)
        self._split = split
        self._rows = rows

    @property
    def position(self) -> bytes:
        source = nested(super().position)
        return encode_position(_KIND, {**self._split.identity(), "rows": self._rows, "source": source})

    def __next__(self) -> Any:
        while True:
            element = next(self._source)
            rows = self._call(self._choose, element)
            self._rows += num_rows_of(element)
            if len(rows):
                return select_rows(element, rows) if has_rows(element) else element

    def _choose(self, element: Any) -> npt.NDArray[np.int64]:
        return self._split.rows_of(element, self._rows)


_DEDUPLICATE = "deduplicate"


class Deduplicate(Stage[Batch, Batch]):
    """Drops a row whose key was read within the last `window` rows, whether that row was kept or not.

    The state is a function of those rows alone. So a position needs only the start of the window: a resumed reading
    reads up to two windows again, without returning them. Memory: about 32 bytes for each row of the window. One column
    of integers is compared exactly, others by a hash of 64 bits.
    """

    def __init__(self, columns: Sequence[str], window: int) -> None:
        self.columns = (columns,) if isinstance(columns, str) else tuple(columns)
        if not self.columns:
            raise ValueError("deduplicate: at least one column must be named, got none")
        self.window = whole_number("deduplicate: window", window, at_least=1)

    def read(self, source: StageSource[Batch], position: bytes | None) -> Reading[Batch]:
        """Starts a reading; its position is that of the source at the start of the window, and the batches since."""
        identity = {"columns": list(self.columns), "window": self.window}
        return _DeduplicateReading(*resumed(source, position, _DEDUPLICATE, "batches", **identity), self)


class _DeduplicateReading(StageReading[Batch, Batch]):
    def __init__(self, source: Reading[Batch], batches_to_replay: int, stage: Deduplicate) -> None:
        super().__init__(source)
        self._stage = stage
        self._seen = _RecentKeys(stage.window)
        self._starts: deque[tuple[bytes, int]] = deque([(source.position, 0)])
        """Position and row number before each batch of the window, oldest first, and after the last."""
        self._to_replay = batches_to_replay

    @property
    def position(self) -> bytes:
        super().position  # noqa: B018 - refuses where a batch was read and not returned
        batches = len(self._starts) - 1 + self._to_replay
        identity = {"columns": list(self._stage.columns), "window": self._stage.window}
        return encode_position(_DEDUPLICATE, {**identity, "batches": batches, "source": nested(self._starts[0][0])})

    def __next__(self) -> Batch:
        while self._to_replay:
            self._step(next(self._source))
            self._to_replay -= 1
        while True:
            kept = self._step(next(self._source))
            if kept is not None:
                return kept

    def _step(self, batch: Batch) -> Batch | None:
        is_new = self._call(self._new_rows, batch)
        end = self._starts[-1][1] + batch.num_rows
        self._starts.append((self._source.position, end))
        while len(self._starts) > 1 and self._starts[1][1] <= end - self._stage.window:
            self._starts.popleft()
        return keep_rows(batch, torch.from_numpy(is_new))

    def _new_rows(self, batch: Batch) -> npt.NDArray[np.bool_]:
        if not isinstance(batch, Batch):
            raise TypeError(f"deduplicate: expected batches, got a {type(batch).__name__}")
        return self._seen.add(row_keys(batch, self._stage.columns, "deduplicate").numpy())


class _RecentKeys:
    """Keys and the number of the row in which each was read last; keys before the window are evicted over time."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._keys: Numbers = np.empty(0, dtype=np.int64)  # sorted
        self._rows: Numbers = np.empty(0, dtype=np.int64)
        self._next_row = 0

    def add(self, keys: Numbers) -> npt.NDArray[np.bool_]:
        """Returns which of these rows have a key that no row of the window before them has."""
        rows = np.arange(self._next_row, self._next_row + len(keys))
        order = np.argsort(keys, kind="stable")
        ordered, ordered_rows = keys[order], rows[order]
        # The row before it with the same key: in this batch, or else the last one that is remembered.
        is_first = np.diff(ordered, prepend=ordered[:1] - 1) != 0 if len(keys) else np.empty(0, dtype=bool)
        before = np.full(len(keys), -self._window - 1, dtype=np.int64)
        before[~is_first] = ordered_rows[np.flatnonzero(~is_first) - 1]
        distinct = ordered[is_first]
        places, known = self._find(distinct)
        first = before[is_first]
        first[known] = self._rows[places[known]]
        before[is_first] = first
        is_new = np.empty(len(keys), dtype=bool)
        is_new[order] = ordered_rows - before > self._window
        last = np.append(np.flatnonzero(is_first)[1:], len(keys))[: len(distinct)] - 1
        self._remember(distinct, ordered_rows[last], places, known)
        self._next_row += len(keys)
        return is_new

    def _find(self, keys: Numbers) -> tuple[Numbers, npt.NDArray[np.bool_]]:
        places = np.searchsorted(self._keys, keys)
        if not len(self._keys):
            return places, np.zeros(len(keys), dtype=bool)
        return places, self._keys[np.minimum(places, len(self._keys) - 1)] == keys

    def _remember(self, keys: Numbers, rows: Numbers, places: Numbers, known: npt.NDArray[np.bool_]) -> None:
        self._rows[places[known]] = rows[known]
        self._keys = np.insert(self._keys, places[~known], keys[~known])
        self._rows = np.insert(self._rows, places[~known], rows[~known])
        if len(self._keys) > 2 * self._window:
            recent = self._rows >= self._next_row - self._window
            self._keys, self._rows = self._keys[recent], self._rows[recent]
