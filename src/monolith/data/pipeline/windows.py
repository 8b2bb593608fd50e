"""Stages that gather rows: `Dataset.batch`, `merged_window` and `shuffle`.

`shuffle` reads a window completely, permutes and returns it, then reads the next one. Unlike a buffer in which some
rows wait forever, it is restored exactly from a small state: the source's position before the window, and how much of
the window was returned. A row moves by less than two windows; for more, shuffle the order of files too, and interleave
them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from monolith.data.pipeline.draws import permutation
from monolith.data.pipeline.stage import KnownLength, Stage, StageReading, StageSource, resumed, whole_number
from monolith.data.position import SavedPosition, encode_position, nested
from monolith.data.rows import has_rows, join_rows, num_rows_of, select_rows

if TYPE_CHECKING:
    from monolith.data.pipeline.stage import Reading

_BATCH = "batch"


class Rebatch(Stage[Any, Any]):
    """Blocks of exactly `size` rows: a `Batch`, `Records`, or a list of what has no rows.

    The size is not part of a position: reading may resume with another one.
    """

    works_on_shares = True

    def __init__(self, size: int, *, drop_remainder: bool = False) -> None:
        self._size = whole_number("batch: size", size, at_least=1)
        self._drop_remainder = drop_remainder

    def read(self, source: StageSource[Any], position: bytes | None) -> Reading[Any]:
        """Starts a reading; its position is that of the source before a block, and the number of returned rows."""
        return _RebatchReading(*resumed(source, position, _BATCH, "rows"), self._size, self._drop_remainder)

    def known(self, source: KnownLength) -> KnownLength:
        """Returns the number of blocks that the rows fill."""
        if source.rows is None:
            return KnownLength()
        whole, rest = divmod(source.rows, self._size)
        if self._drop_remainder or not rest:
            return KnownLength(whole, whole * self._size)
        return KnownLength(whole + 1, source.rows)

    def __repr__(self) -> str:
        return f"batch({self._size}{', drop_remainder=True' if self._drop_remainder else ''})"


class _RebatchReading(StageReading[Any, Any]):
    def __init__(self, source: Reading[Any], rows_to_skip: int, size: int, drop_remainder: bool) -> None:
        super().__init__(source)
        self._size = size
        self._drop_remainder = drop_remainder
        self._pieces: list[Any] = []
        self._num_gathered = 0
        self._rows_to_skip = rows_to_skip
        self._block: Any = None
        self._used = 0
        self._are_blocks: bool | None = None
        """Whether elements have rows; if not, positions fall between elements and need not be kept for each."""
        self._before_block = source.position
        self._returned_to = (self._before_block, rows_to_skip)

    @property
    def position(self) -> bytes:
        before_block, rows = self._returned_to
        return encode_position(_BATCH, {"rows": rows, "source": nested(before_block)})

    def __next__(self) -> Any:
        while self._num_gathered < self._size:
            if self._block is None:
                try:
                    self._next_block()
                except StopIteration:
                    if not self._num_gathered or self._drop_remainder:
                        raise
                    break
            self._gather()
        return self._hand_out()

    def _next_block(self) -> None:
        """Makes the next element of the source the current block; state changes only once the element is available."""
        before = self._before_block if self._are_blocks is False else self._source.position
        block = next(self._source)
        if self._are_blocks not in (None, has_rows(block)):
            raise TypeError(f"batch: expected elements that all have rows or none, got a {type(block).__name__}, too")
        self._are_blocks = has_rows(block)
        self._before_block, self._block = before, block
        rows = num_rows_of(block)
        self._used = min(self._rows_to_skip, rows)
        self._rows_to_skip -= self._used

    def _gather(self) -> None:
        """Takes rows from the block until there are enough, or the block is used up."""
        rows = num_rows_of(self._block)
        taken = min(self._size - self._num_gathered, rows - self._used)
        if taken:
            end = self._used + taken
            whole = taken == rows
            self._pieces.append(self._block if whole else select_rows(self._block, slice(self._used, end)))
            self._num_gathered += taken
            self._used = end
        if self._used == rows:
            self._block = None

    def _hand_out(self) -> Any:
        block = join_rows(self._pieces) if has_rows(self._pieces[0]) else list(self._pieces)
        self._pieces, self._num_gathered = [], 0
        is_used_up = self._block is None
        self._returned_to = (self._source.position, 0) if is_used_up else (self._before_block, self._used)
        return block


class MergedWindow(Stage[Any, Any]):
    """Joins the rows of `size` elements at a time; the last ones as many as they are."""

    works_on_shares = True

    def __init__(self, size: int) -> None:
        self._size = whole_number("merged_window: size", size, at_least=1)

    def read(self, source: StageSource[Any], position: bytes | None) -> Reading[Any]:
        """Starts a reading whose position is that of the source after the last element that was joined."""
        return _WindowReading(source.read(position), self._size)

    def known(self, source: KnownLength) -> KnownLength:
        """Returns a window for each `size` elements."""
        return KnownLength(None if source.elements is None else -(-source.elements // self._size), source.rows)

    def __repr__(self) -> str:
        return f"merged_window({self._size})"


class _WindowReading(StageReading[Any, Any]):
    def __init__(self, source: Reading[Any], size: int) -> None:
        super().__init__(source)
        self._size = size
        self._position = source.position
        self._gathered: list[Any] = []

    @property
    def position(self) -> bytes:
        return self._position

    def __next__(self) -> Any:
        while len(self._gathered) < self._size:
            try:
                element = next(self._source)
            except StopIteration:
                if not self._gathered:
                    raise
                break
            if not has_rows(element):
                raise TypeError(f"merged_window: expected batches or records, got a {type(element).__name__}")
            self._gathered.append(element)
        merged = join_rows(self._gathered)
        self._gathered, self._position = [], self._source.position
        return merged


_SHUFFLE = "shuffle"


class Shuffle(Stage[Any, Any]):
    """Permutes windows of at least `rows` rows; elements have as many rows as those of the source, in their order.

    Memory holds one window, and at most one element more. The order differs in each epoch of `repeat`.
    """

    works_on_shares = True
    keeps_length = True

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
        saved = SavedPosition(position, _SHUFFLE).require_same(rows=self.rows, seed=self.seed, epoch=self.epoch)
        window, handed_out = saved.number("window"), saved.number("handed_out")
        return _ShuffleReading(source.read(saved.position("source")), self, window=window, handed_out=handed_out)

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
        identity = {"epoch": self._shuffle.epoch, "rows": self._shuffle.rows, "seed": self._shuffle.seed}
        place = {"window": self._window, "handed_out": self._handed_out, "source": nested(self._before_window)}
        return encode_position(_SHUFFLE, identity | place)

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
