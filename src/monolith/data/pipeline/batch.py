"""`Dataset.batch`: rows in blocks of one size, across the blocks that they come in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith.data.pipeline.counts import KnownLength, whole_number
from monolith.data.pipeline.stage import Stage, StageReading, StageSource
from monolith.data.position import SavedPosition, encode_position, nested
from monolith.data.rows import has_rows, join_rows, num_rows_of, select_rows

if TYPE_CHECKING:
    from monolith.data.reading import Reading

__all__ = ["Rebatch"]

_KIND = "batch"


class Rebatch(Stage[Any, Any]):
    """Blocks of exactly `size` rows: a `Batch`, `Records`, or a list of what has no rows.

    The size is not part of a position: reading may resume with another one.

    Args:
        size: Rows of a block.
        drop_remainder: Whether rows at the end that do not fill a block are dropped.
    """

    works_on_shares = True

    def __init__(self, size: int, *, drop_remainder: bool = False) -> None:
        self._size = whole_number("batch: size", size, at_least=1)
        self._drop_remainder = drop_remainder

    def read(self, source: StageSource[Any], position: bytes | None) -> Reading[Any]:
        """Starts a reading; its position is that of the source before a block, and the number of returned rows."""
        if position is None:
            return _RebatchReading(source.read(), 0, self._size, self._drop_remainder)
        saved = SavedPosition(position, _KIND)
        rows = saved.number("rows")
        return _RebatchReading(source.read(saved.position("source")), rows, self._size, self._drop_remainder)

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
        return encode_position(_KIND, {"rows": rows, "source": nested(before_block)})

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
        made = join_rows(self._pieces) if has_rows(self._pieces[0]) else list(self._pieces)
        self._pieces, self._num_gathered = [], 0
        if self._block is not None:
            self._returned_to = (self._before_block, self._used)
        else:
            self._returned_to = (self._source.position, 0)
        return made
