"""Row blocks of all ranks, one rank after the other, in portions that every rank receives."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from monolith.collective.sharded.outcome import settled
from monolith.collective.sharded.values import pack, unpack
from monolith.tables.formats.row_block import RowBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monolith.collective.sharded.calls import RankCalls

__all__ = ["BlockStreams"]

_PORTION_BYTES = 8 << 20


class BlockStreams:
    """Streams of blocks between the ranks."""

    def __init__(self, calls: RankCalls) -> None:
        self._calls = calls
        self._numbers = count()
        self._open: dict[int, Iterator[RowBlock]] = {}
        calls.define("next blocks of", self._next)

    def open(self, begin: Callable[[], Iterator[RowBlock]]) -> int:
        """Opens the blocks of each rank, under one number. Runs in a call of all ranks."""
        number = next(self._numbers)

        def opened() -> bytes:
            self._open[number] = begin()
            return b""

        settled(self._calls.wire, opened)
        return number

    def blocks(self, number: int) -> Iterator[RowBlock]:
        """Yields all blocks; every portion is a call of all ranks."""
        for rank in range(self._calls.wire.size):
            has_more = True
            while has_more:
                has_more, portion = self._calls.run("next blocks of", pack([number, rank]))
                yield from map(RowBlock, portion)
        self._open.pop(number, None)

    def _next(self, arguments: bytes, _: object) -> tuple[bool, list[bytes]]:
        (number, rank), _blobs = unpack(arguments)
        wire = self._calls.wire
        answers = settled(wire, lambda: self._portion(number) if wire.rank == rank else b"")
        has_more, portion = unpack(answers[rank])
        if not has_more and rank == wire.size - 1:
            self._open.pop(number, None)
        return has_more, portion

    def _portion(self, number: int) -> bytes:
        blocks, size = [], 0
        for block in self._open[number]:
            blocks.append(block.data)
            size += len(block.data)
            if size >= _PORTION_BYTES:
                return pack(True, blocks)
        return pack(False, blocks)
