"""The lines of a stream, some mebibytes at a time, cut where a line ends."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from monolith import _core
from monolith.errors import DataLossError

if TYPE_CHECKING:
    import numpy.typing as npt

    from monolith.data.records.compression import ByteSource

_NEWLINE = ord("\n")
_SKIP_STEP = 1 << 20
_FIRST_LINE_BYTES = 1 << 16
_SEARCHED_AT_A_TIME = 1 << 16


class LineBlock(NamedTuple):
    """Complete lines."""

    data: memoryview
    line: int
    """Number of the first of them, from 0 on."""
    end: int
    """Start of the next block, in uncompressed bytes."""
    end_line: int


class LineBlocks:
    """Reads blocks of complete lines.

    Args:
        stream: Uncompressed bytes, at their start.
        block_bytes: Approximate size of a block; a longer line makes its block longer.
        max_line_bytes: A longer line is an error.
        quote: Between two of these bytes a line end is part of a value; None: every line end ends a line.
        end: Lines that begin at or after this offset in uncompressed bytes are not read; None: all are read. Requires
            `quote` to be None.
    """

    def __init__(
        self,
        stream: ByteSource,
        *,
        block_bytes: int,
        max_line_bytes: int,
        quote: bytes | None = None,
        end: int | None = None,
    ) -> None:
        self._end = end
        self._stream = stream
        self._block_bytes = block_bytes
        self._max_line_bytes = max_line_bytes
        self._quote = None if quote is None else quote[0]
        self._rest: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)
        """Read, and not yet handed out."""
        self._is_at_end = False
        self.offset = 0
        """Start of the next line."""
        self._line = 0

    def take_line(self) -> bytes:
        """Returns the next line, with its end."""
        size = _FIRST_LINE_BYTES
        self._fill(size)
        while (end := bytes(self._rest).find(b"\n") + 1) == 0 and not self._is_at_end:
            size *= 2
            self._fill(size)
        line = self._rest[: end or len(self._rest)].tobytes()
        self._rest = self._rest[len(line) :]
        self.offset += len(line)
        self._line += 1
        return line

    def find_line(self, offset: int) -> None:
        """Skips to the first line that begins at or after this offset, and counts lines from there."""
        if offset > self.offset:
            self.go_to(offset - 1, 0)
            self.take_line()
        self._line = 0

    def go_to(self, offset: int, line: int) -> None:
        """Steps over bytes until the next line is the one that begins at this offset."""
        if self._end is not None and offset > self.offset + len(self._rest):  # a part is read of files with places
            self._seek(offset)
        while self.offset + len(self._rest) < offset:
            self.offset += len(self._rest)
            self._rest = np.zeros(0, np.uint8)
            self._fill(min(_SKIP_STEP, offset - self.offset))
            if not len(self._rest):
                raise DataLossError(f"it ends at byte {self.offset}, and was read up to byte {offset} before")
        self._rest = self._rest[offset - self.offset :]
        self.offset, self._line = offset, line

    def next_block(self) -> LineBlock | None:
        """Returns the next lines; None at the end. The last line may lack a line end.

        The end of a block depends only on its start, not on what is buffered already: a reading that resumes from a
        position makes the same blocks as the one that saved it.
        """
        size = self._block_bytes
        if self._end is not None:
            size = min(size, max(0, self._end - self.offset) + _FIRST_LINE_BYTES)
        self._fill(size)
        while (end := self._last_end(size)) == 0 and not (self._is_at_end and size >= len(self._rest)):
            size *= 2
            self._fill(size)
        block = self._before_end(self._rest[: end or len(self._rest)])
        if not len(block):
            return None
        lines = int(np.count_nonzero(block == _NEWLINE)) + int(block[-1] != _NEWLINE)
        line_block = LineBlock(block.data, self._line, self.offset + len(block), self._line + lines)
        self._rest, self.offset, self._line = self._rest[len(block) :], line_block.end, line_block.end_line
        return line_block

    def _before_end(self, block: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Returns the lines of a block that begin before the end."""
        if self._end is None or self.offset + len(block) <= self._end:
            return block
        if self.offset >= self._end:
            return block[:0]
        last = self._end - 1 - self.offset  # the line that has this byte is the last one
        return block[: bytes(block).find(b"\n", last) + 1 or len(block)]

    def _seek(self, offset: int) -> None:
        stream: Any = self._stream
        size = stream.seek(0, os.SEEK_END)
        if size < offset:
            raise DataLossError(f"it ends at byte {size}, and was read up to byte {offset} before")
        stream.seek(offset)
        self._rest, self.offset, self._is_at_end = np.zeros(0, np.uint8), offset, False

    def _last_end(self, size: int) -> int:
        """Returns the end of the last complete line in the first `size` bytes; 0: there is none."""
        if self._is_at_end and len(self._rest) < size:
            return len(self._rest)
        if self._quote is None:
            return self._line_end_before(min(size, len(self._rest)))
        seen = self._rest[:size]
        ends = np.flatnonzero(seen == _NEWLINE)
        outside = ends[np.searchsorted(np.flatnonzero(seen == self._quote), ends) % 2 == 0]
        return int(outside[-1]) + 1 if len(outside) else 0

    def _line_end_before(self, end: int) -> int:
        """Returns the offset after the last line end in the first `end` bytes; 0: there is none."""
        while end > 0:
            begin = max(0, end - _SEARCHED_AT_A_TIME)
            if length := bytes(self._rest[begin:end]).rfind(b"\n") + 1:
                return begin + length
            end = begin
        return 0

    def _fill(self, size: int) -> None:
        """Reads until there are `size` bytes, or all."""
        kept = len(self._rest)
        if kept > self._max_line_bytes:
            raise DataLossError(f"line {self._line + 1} is longer than {self._max_line_bytes} bytes")
        if kept >= size or self._is_at_end:
            return
        chunk = _core.take_chunk(size)  # used again when the block is dropped: fresh memory would take half the time
        chunk[:kept] = self._rest
        read_into = getattr(self._stream, "readinto", None)
        while kept < size and not self._is_at_end:
            if read_into is not None:
                count = read_into(chunk[kept:].data) or 0
            else:
                piece = self._stream.read(size - kept)
                count = len(piece)
                chunk[kept : kept + count] = np.frombuffer(piece, np.uint8)
            self._is_at_end = not count
            kept += count
        self._rest = chunk[:kept]
