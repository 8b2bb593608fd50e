"""One frozen state of a whole group, read while training goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from monolith.errors import InvalidArgumentError
from monolith.tables.row_block import RowBlock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monolith import _core

NUM_BUCKETS = 1024
ALL_BUCKETS = range(NUM_BUCKETS)


def bucket_bounds(buckets: range) -> tuple[int, int]:
    """Begin and end of consecutive buckets."""
    if buckets.step != 1 or not 0 <= buckets.start <= buckets.stop <= NUM_BUCKETS:
        raise InvalidArgumentError(f"buckets must be a range inside range({NUM_BUCKETS}) of step 1, got {buckets}")
    return buckets.start, buckets.stop


def row_blocks(source: _core.BlockIterator) -> Iterator[RowBlock]:
    """The blocks of a native iterator."""
    while (data := next(source, None)) is not None:
        yield RowBlock(data)


class TableCut:
    """The rows, filters and tombstones of a group as they were at one moment; valid until `release`.

    A context manager; only one cut of a group can be open. Writers go on meanwhile: the old image of a row they change
    is kept for the cut until its bucket was read.
    """

    def __init__(self, core: _core.Cut) -> None:
        self.core = core

    @property
    def epoch(self) -> int:
        """Its place in the history: `changes(cut.epoch)` is what came after it."""
        return self.core.epoch

    def __len__(self) -> int:
        return sum(self.core.count())

    def blocks(self, buckets: range = ALL_BUCKETS, *, state: bool = True) -> Iterator[RowBlock]:
        """The blocks of some buckets, each bucket once per cut; `state=False` gives serving rows."""
        begin, end = bucket_bounds(buckets)
        return row_blocks(self.core.blocks(begin, end, state))

    def release(self) -> None:
        """Lets the group forget the old images. Calling it again does nothing."""
        self.core.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
