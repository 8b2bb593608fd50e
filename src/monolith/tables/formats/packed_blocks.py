"""Many row blocks end to end in one buffer, as a delta log keeps them and the core makes and takes them in one call."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Self

import numpy as np

from monolith import _core
from monolith.tables.formats.row_block import RowBlock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

__all__ = ["PackedBlocks"]


class PackedBlocks:
    """Row blocks (docs/formats/row_block.md) end to end, without a Python object for each.

    `ChangeReader.packed_changes` makes it and `Store.load` takes it, like any iterable of blocks; a store in this
    process does either in one call. The constructor checks nothing: headers are checked when blocks are accessed, and
    `Store.load` checks all blocks, checksums included, before it changes a row.

    >>> from monolith.tables import LocalStore, Segment, TableConfig, TableGroup
    >>> store, copy = (LocalStore({"user": TableConfig([Segment(1)])}) for _ in range(2))
    >>> reader = store.open_reader("log")
    >>> TableGroup.of_store(store)["user"].assign([3, 5], [[0.5], [1.5]])
    >>> packed = reader.packed_changes(state=True)
    >>> copy.load(packed, buckets=range(1024), replace=False).rows
    2
    >>> packed.count, sorted(int(key) for block in packed for key in block.keys)
    (2, [3, 5])
    """

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self.data = data
        """The bytes, which belong to the caller and must not change."""

    @classmethod
    def of(cls, blocks: Iterable[RowBlock]) -> Self:
        """Concatenates blocks."""
        return cls(b"".join(block.data for block in blocks))

    @cached_property
    def _offsets(self) -> NDArray[np.int64]:
        """Where each block begins, and where the last one ends."""
        return _core.packed_block_offsets(self.data)

    @property
    def count(self) -> int:
        """Number of blocks.

        Raises:
            DataLossError: the bytes are not row blocks end to end; names the offset.
        """
        return len(self._offsets) - 1

    @property
    def num_bytes(self) -> int:
        """Number of bytes of all blocks."""
        return memoryview(self.data).nbytes

    def pieces(self, at_most: int) -> Iterator[memoryview]:
        """Yields the bytes in pieces of complete blocks, at most `at_most` bytes each, or one block that is longer.

        Raises:
            DataLossError: as `count`, where it does not fit one piece.
        """
        view = memoryview(self.data).cast("B")
        if len(view) <= at_most:
            return iter([view] if len(view) else [])
        ends = self._offsets[1:]
        begins = [0]
        while begins[-1] < len(view):
            last = int(np.searchsorted(ends, begins[-1] + at_most, side="right")) - 1
            following = int(np.searchsorted(ends, begins[-1], side="right"))
            begins.append(int(ends[max(last, following)]))
        return (view[begin:end] for begin, end in pairwise(begins))

    def __iter__(self) -> Iterator[RowBlock]:
        """Yields a copy of each block.

        Raises:
            DataLossError: as `count`.
        """
        offsets = self._offsets.tolist()
        view = memoryview(self.data)
        return (RowBlock(bytes(view[begin:end])) for begin, end in pairwise(offsets))

    def __repr__(self) -> str:
        return f"PackedBlocks({self.num_bytes} bytes)"
