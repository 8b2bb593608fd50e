"""Files of lines, each a sample: what CSV and JSON lines share."""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from monolith.data.pipeline.stage import whole_number
from monolith.data.records.bad_records import BadRecords
from monolith.data.records.compression import Compression, open_decompressed
from monolith.data.sources.arrow import pa
from monolith.data.sources.file_dataset import FileDataset
from monolith.data.sources.file_set import FileSet
from monolith.data.sources.line_blocks import LineBlocks
from monolith.data.sources.wanted_columns import Wanted, batch_of_table
from monolith.errors import DataLossError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import BinaryIO

    from monolith.data.batch import Batch
    from monolith.data.sources.file_patterns import Paths
    from monolith.data.sources.file_set import Files
    from monolith.data.sources.line_blocks import LineBlock

BLOCK_BYTES = 8 << 20
MAX_LINE_BYTES = 256 << 20
_TASKS_OF_A_THREAD = 4
_LEAST_OF_A_TASK = 1 << 19
_HEAD_BYTES = 1 << 20
"""Bytes of the first file from which the types of all are inferred."""


def bytes_of_a_task(num_bytes: int) -> int:
    """Returns the bytes of a block that one thread of Arrow parses at a time: several tasks per thread, for balance."""
    threads: int = pa.cpu_count()
    return max(_LEAST_OF_A_TASK, num_bytes // (_TASKS_OF_A_THREAD * threads) + 1)


class FoundColumns(NamedTuple):
    """Columns of the files, inferred from the head of the first one, and which are read."""

    schema: pa.Schema
    """Schema of all columns of the file."""
    wanted: dict[str, Wanted]
    layout: Any = None
    """Further properties of the format, such as the delimiter."""


class Rejected(NamedTuple):
    """A line that was not taken."""

    text: bytes
    reason: str


class LineParser(Protocol):
    """Parses the lines of one file."""

    def __call__(self, block: memoryview) -> tuple[pa.Table, Sequence[Rejected]]:
        """Parses complete lines into rows; raises `pa.ArrowInvalid` if a value does not fit its column."""


class LineDataset(FileDataset["Batch"]):
    """Blocks of lines of files as batches. Types are inferred once, from the head of the first file, and hold for all.

    Args:
        files: Paths or patterns, or a `FileSet` or `QueuedFiles`.
        block_bytes: Approximate uncompressed bytes of a batch; `batch` makes batches of rows.
        compression: Compression of the files.
        cycle_length: Number of files to read at a time, a block of each, round-robin.
        bad: Counts lines that cannot be read, and limits how many may be skipped.
    """

    def __init__(
        self,
        files: Files | Paths,
        *,
        block_bytes: int = BLOCK_BYTES,
        compression: Compression | str = Compression.FROM_NAME,
        cycle_length: int = 1,
        bad: BadRecords | None = None,
    ) -> None:
        super().__init__(files, cycle_length=cycle_length)
        self._block_bytes = whole_number("block_bytes", block_bytes, at_least=1)
        self._compression = Compression.of(compression)
        self._bad = BadRecords() if bad is None else bad
        self._file_columns: list[FoundColumns] = []
        """One, once they are known; copies for other epochs share it."""

    @abstractmethod
    def find_columns(self, path: str, head: bytes) -> FoundColumns:
        """Infers the columns from the head of the first file; `head` ends with a complete line, or with the file."""

    @abstractmethod
    def begin_file(self, path: str, blocks: LineBlocks, file_columns: FoundColumns) -> LineParser:
        """Reads what stands before the lines of a file, such as its header."""

    @property
    def quote(self) -> bytes | None:
        """Quote byte, inside which a line end is part of a value."""
        return None

    @property
    def schema(self) -> pa.Schema:
        """Types of all columns, as Arrow has them: found from the head of the first file, or as they were given."""
        return self._columns_of(None).schema

    @property
    def columns(self) -> dict[str, Wanted]:
        """Returns the columns of the batches, with their requested types."""
        return dict(self._columns_of(None).wanted)

    def open_file(self, path: str, place: Any) -> _OpenLines:
        """Opens a file; a place is an offset in the uncompressed file, and the number of lines before it.

        Of a part those lines are read that begin in its bytes. Its places include the size of the file.
        """
        try:
            start = None if place is None else (int(place["offset"]), int(place["line"]))
            size_then = None if place is None or self.part == (0, 1) else int(place["size"])
        except (TypeError, KeyError, ValueError) as error:
            text = f"file '{path}': expected offset and line to resume from, got {place!r}"
            raise InvalidArgumentError(text) from error
        file_columns = self._columns_of(path)
        file = self.files.open(path)
        try:
            part = None if self.part == (0, 1) else _part_of(file, path, self.part, size_then)
            stream = open_decompressed(file, self._compression.resolve(path))
            blocks = LineBlocks(
                stream,
                block_bytes=self._block_bytes,
                max_line_bytes=MAX_LINE_BYTES,
                quote=self.quote,
                end=None if part is None else part.end,
            )
            parse = self.begin_file(path, blocks, file_columns)
            if part is not None:
                blocks.find_line(part.begin)
            first_byte = 0 if part is None else blocks.offset
            rows = _LineRows(path, parse, file_columns.wanted, self._bad, first_byte=first_byte)
            if start is not None:
                blocks.go_to(*start)
            return _OpenLines(file, path, blocks, rows, place, size=None if part is None else part.size)
        except DataLossError as error:
            file.close()
            raise DataLossError(f"file '{path}': {error}") from error
        except BaseException:
            file.close()
            raise

    def can_split_files(self) -> bool:
        """Returns whether lines can be found from any byte on: no compression, and no line end inside a cell."""
        if self.quote is not None or not isinstance(self.files, FileSet):
            return False
        if any(self._compression.resolve(path) is not Compression.NONE for path in self.files.files):
            return False
        return all(self.files.has_places(path) for path in self.files.files)

    def tables(self) -> Iterator[tuple[str, int, pa.Table]]:
        """Yields the rows as Arrow tables, before they become a batch: file, number of the first line, and rows."""
        if not isinstance(self.files, FileSet):
            raise InvalidArgumentError("tables are read of files that are known, not of a queue")
        for path in self.files.order(self._epoch):
            opened = self.open_file(path, None)
            try:
                yield from ((path, line, table) for line, table in opened.tables())
            finally:
                opened.close()

    def _columns_of(self, path: str | None) -> FoundColumns:
        """Returns what is found, by the first file of all, or by this one where files come from a queue."""
        if not self._file_columns:
            first = self.files.files[0] if isinstance(self.files, FileSet) else path
            if first is None:
                raise InvalidArgumentError("files of a queue show their columns once one is read")
            self._file_columns.append(self.find_columns(first, self._head_of(first)))
        return self._file_columns[0]

    def _head_of(self, path: str) -> bytes:
        with self.files.open(path) as file:
            stream = open_decompressed(file, self._compression.resolve(path))
            blocks = LineBlocks(stream, block_bytes=_HEAD_BYTES, max_line_bytes=MAX_LINE_BYTES, quote=self.quote)
            head = b""
            try:
                # A header line alone does not determine types.
                while head.count(b"\n") < 2 and (block := blocks.next_block()) is not None:
                    head += bytes(block.data)
            except DataLossError as error:
                raise DataLossError(f"file '{path}': {error}") from error
        return head


class _Bytes(NamedTuple):
    """A part of a file."""

    begin: int
    end: int
    size: int
    """Size of the file in bytes."""


def _part_of(file: BinaryIO, path: str, part: tuple[int, int], size_then: int | None) -> _Bytes:
    index, count = part
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if size_then not in (None, size):
        raise InvalidArgumentError(
            f"file '{path}': it had {size_then} bytes when {count} workers shared it, and has {size} now, so that their"
            " parts are others; put the file back, or begin with another model_dir"
        )
    return _Bytes(size * index // count, size * (index + 1) // count, size)


class _OpenLines:
    def __init__(
        self, file: BinaryIO, path: str, blocks: LineBlocks, rows: _LineRows, place: Any, *, size: int | None = None
    ) -> None:
        self._size = {} if size is None else {"size": size}
        self._file = file
        self._path = path
        self._blocks = blocks
        self._rows = rows
        self.place = place
        self._block: LineBlock | None = None
        """Read, and not yet handed out: what has raised is tried again."""

    def __next__(self) -> Batch:
        while (block := self._next_block()) is not None:
            batch = self._rows.batch_of(block)
            self._step_behind(block)
            if batch is not None:
                return batch
        raise StopIteration

    def tables(self) -> Iterator[tuple[int, pa.Table]]:
        """Yields all rows, with the numbers of their first lines."""
        while (block := self._next_block()) is not None:
            for table in self._rows.tables_of(block.data, block.line):
                yield block.line, table
            self._step_behind(block)

    def skip(self) -> None:
        """Steps over a block without parsing it."""
        block = self._next_block()
        if block is None:
            raise StopIteration
        self._step_behind(block)

    def close(self) -> None:
        self._file.close()

    def _next_block(self) -> LineBlock | None:
        if self._block is None:
            try:
                self._block = self._blocks.next_block()
            except DataLossError as error:
                raise DataLossError(f"file '{self._path}': {error}") from error
        return self._block

    def _step_behind(self, block: LineBlock) -> None:
        self._block = None
        self.place = {"line": block.end_line, "offset": block.end, **self._size}


class _LineRows:
    """Makes batches of blocks; lines that cannot be read are found and counted one by one."""

    def __init__(
        self, path: str, parse: LineParser, columns: dict[str, Wanted], bad: BadRecords, *, first_byte: int
    ) -> None:
        self._path = path
        self._from = f" from byte {first_byte} on" if first_byte else ""
        """Suffix of messages: the byte from which lines are counted."""
        self._parse = parse
        self._columns = columns
        self._bad = bad

    def batch_of(self, block: LineBlock) -> Batch | None:
        """Returns the good rows of a block; None if there are none."""
        tables = self.tables_of(block.data, block.line)
        if not any(table.num_rows for table in tables):
            return None
        table = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
        return batch_of_table(table, self._columns, f"file '{self._path}'")

    def tables_of(self, data: memoryview, line: int) -> list[pa.Table]:
        """Returns the good rows of some lines."""
        try:
            table, rejected = self._parse(data)
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            # One value does not fit: halves are tried until the line is found.
            middle = _line_end_near_the_middle(data)
            if middle == len(data):
                self._bad.add(f"file '{self._path}': line {line + 1}{self._from}: {error}")
                return []
            first = data[:middle]
            return self.tables_of(first, line) + self.tables_of(data[middle:], line + bytes(first).count(b"\n"))
        for rejection in rejected:
            text = bytes(data)
            number = line + 1 + text.count(b"\n", 0, max(0, text.find(rejection.text)))
            self._bad.add(f"file '{self._path}': line {number}{self._from}: {rejection.reason}")
        return [table]


def _line_end_near_the_middle(data: memoryview) -> int:
    text = bytes(data)
    before = text.rfind(b"\n", 0, len(text) // 2) + 1
    return before or (text.find(b"\n") + 1 or len(text))
