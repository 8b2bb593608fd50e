"""`Dataset.shuffle`: rows in random order, within windows of the stream.

A window is read completely, permuted and returned, then the next one is read. Unlike a buffer in which some rows wait
forever, it is restored exactly from a small state: the source's position before the window, and how much of the window
was returned. A row moves by less than two windows; for more, shuffle the order of files too, and interleave them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from monolith.data.pipeline.counts import KnownLength, whole_number
from monolith.data.pipeline.draws import permutation
from monolith.data.pipeline.stage import Stage, StageReading, StageSource
from monolith.data.position import SavedPosition, encode_position, nested
from monolith.data.rows import has_rows, join_rows, num_rows_of, select_rows

if TYPE_CHECKING:
    from monolith.data.reading import Reading

__all__ = ["Shuffle"]

_KIND = "shuffle"


class Shuffle(Stage[Any, Any]):
    """Permutes windows of at least `rows` rows; elements have as many rows as those of the source, in their order.

    Args:
        rows: Minimum rows of a window; memory holds one window, and at most one element more.
        seed: Seed of the order, which differs in each epoch of `repeat`.
    """

    works_on_shares = True

    def __init__(self, rows: int, *, seed: int = 0, epoch: int = 0) -> None:
        self.rows = whole_number("shuffle: rows of a window", rows, at_least=1)
        self.seed = seed
        self.epoch = epoch

    def for_epoch(self, epoch: int) -> Shuffle:
        """Returns the stage with another order, of the same windows."""
        return Shuffle(self.rows, seed=self.seed, epoch=epoch)

    def read(self, source: StageSource[Any], position: bytes | None) -> Reading[Any]:
        """Starts a reading; its position is that of the source before the window, and how much of it was returned."""
        if position is None:
            return _ShuffleReading(source.read(), self, window=0, handed_out=0)
        saved = SavedPosition(position, _KIND).require_same(rows=self.rows, seed=self.seed, epoch=self.epoch)
        window, handed_out = saved.number("window"), saved.number("handed_out")
        return _ShuffleReading(source.read(saved.position("source")), self, window=window, handed_out=handed_out)

    def known(self, source: KnownLength) -> KnownLength:
        """Returns the length of the source."""
        return source

    def __repr__(self) -> str:
        return f"shuffle({self.rows}, seed={self.seed})"


class _ShuffleReading(StageReading[Any, Any]):
    def __init__(self, source: Reading[Any], shuffle: Shuffle, *, window: int, handed_out: int) -> None:
        super().__init__(source)
        self._shuffle = shuffle
        self._window = window
        self._handed_out = handed_out
        self._before_window = source.position
        self._filling: list[Any] = []
        self._num_rows = 0
        self._elements: list[Any] = []
        """The window in its new order, last one first; empty while it is read."""

    @property
    def position(self) -> bytes:
        shuffle = self._shuffle
        fields = {
            "epoch": shuffle.epoch,
            "handed_out": self._handed_out,
            "rows": shuffle.rows,
            "seed": shuffle.seed,
            "source": nested(self._before_window),
            "window": self._window,
        }
        return encode_position(_KIND, fields)

    def __next__(self) -> Any:
        while not self._elements:
            self._fill()
            # At a restored position the first elements were handed out before.
            del self._elements[max(0, len(self._elements) - self._handed_out) :]
            if not self._elements:
                self._begin_window()
        element = self._elements.pop()
        self._handed_out += 1
        if not self._elements:
            self._begin_window()
        return element

    def _begin_window(self) -> None:
        self._window += 1
        self._handed_out = 0
        self._before_window = self._source.position

    def _fill(self) -> None:
        while self._num_rows < self._shuffle.rows:
            try:
                element = next(self._source)
            except StopIteration:
                break
            self._filling.append(element)
            self._num_rows += num_rows_of(element)
        if not self._filling:
            raise StopIteration
        self._elements = self._permuted(self._filling)
        self._elements.reverse()
        self._filling, self._num_rows = [], 0

    def _permuted(self, elements: list[Any]) -> list[Any]:
        key = (self._shuffle.seed, self._shuffle.epoch, self._window)
        if not has_rows(elements[0]):
            return [elements[place] for place in permutation(len(elements), *key).tolist()]
        order = permutation(self._num_rows, *key)
        ends = np.cumsum([0, *(num_rows_of(element) for element in elements)]).tolist()
        joined = join_rows(elements)
        return [select_rows(joined, order[begin:end]) for begin, end in pairwise(ends)]
