"""`Dataset.deduplicate`: drops rows that were read recently."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from monolith.data.batch import Batch
from monolith.data.operators.row_draws import row_keys
from monolith.data.pipeline.stage import Stage, StageReading, StageSource, whole_number
from monolith.data.position import SavedPosition, encode_position, nested
from monolith.data.rows import keep_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from monolith.data.reading import Reading

    Numbers: TypeAlias = npt.NDArray[np.int64]

_KIND = "deduplicate"


class Deduplicate(Stage[Batch, Batch]):
    """Drops a row whose key was read within the last `window` rows, whether that row was kept or not.

    The state is a function of those rows alone. So a position needs only the start of the window: a resumed reading
    reads up to two windows again, without returning them. Memory: about 32 bytes for each row of the window.

    Args:
        columns: Rows that are equal in all of them are the same. One column of integers is compared exactly, others by
            a hash of 64 bits.
        window: Window in rows.
    """

    def __init__(self, columns: Sequence[str], window: int) -> None:
        self.columns = (columns,) if isinstance(columns, str) else tuple(columns)
        if not self.columns:
            raise ValueError("deduplicate: at least one column must be named, got none")
        self.window = whole_number("deduplicate: window", window, at_least=1)

    def read(self, source: StageSource[Batch], position: bytes | None) -> Reading[Batch]:
        """Starts a reading; its position is that of the source at the start of the window, and the batches since."""
        if position is None:
            return _DeduplicateReading(source.read(), self, 0)
        saved = SavedPosition(position, _KIND).require_same(columns=list(self.columns), window=self.window)
        return _DeduplicateReading(source.read(saved.position("source")), self, saved.number("batches"))


class _DeduplicateReading(StageReading[Batch, Batch]):
    def __init__(self, source: Reading[Batch], stage: Deduplicate, batches_to_replay: int) -> None:
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
        return encode_position(_KIND, {**identity, "batches": batches, "source": nested(self._starts[0][0])})

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
