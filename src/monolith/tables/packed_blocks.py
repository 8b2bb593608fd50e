"""Many row blocks end to end in one buffer, as a delta log keeps them and the core makes and takes them in one call."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Self

from monolith import _core
from monolith.tables.row_block import RowBlock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["PackedBlocks"]


class PackedBlocks:
    """Row blocks (docs/formats/row_block.md) one behind the other, without a Python object for each.

    `ChangeReader.packed_changes` makes it and `Store.load` takes it, like any iterable of blocks; a store in this
    process does either in one call. Nothing is checked before somebody asks for blocks: headers are then, and
    `Store.load` checks all of them, checksums included, before it changes a row.

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
        """The bytes, which belong to whoever gave them and must not change."""

    @classmethod
    def of(cls, blocks: Iterable[RowBlock]) -> Self:
        """Puts blocks end to end."""
        return cls(b"".join(block.data for block in blocks))

    @cached_property
    def _offsets(self) -> NDArray[np.int64]:
        """Where each block begins, and where the last one ends."""
        return _core.packed_block_offsets(self.data)

    @property
    def count(self) -> int:
        """Number of blocks.

        Raises:
            DataLossError: the bytes are not row blocks end to end; says at which offset.
        """
        return len(self._offsets) - 1

    def __iter__(self) -> Iterator[RowBlock]:
        """A copy of each block.

        Raises:
            DataLossError: as `count`.
        """
        offsets = self._offsets.tolist()
        view = memoryview(self.data)
        return (RowBlock(bytes(view[begin:end])) for begin, end in pairwise(offsets))

    def __repr__(self) -> str:
        return f"PackedBlocks({len(memoryview(self.data))} bytes)"
