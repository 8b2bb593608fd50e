"""Files of comma-separated values as a dataset of batches; needs `monolith-torch[csv]`."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any, NamedTuple

from monolith.data.records.compression import Compression
from monolith.data.sources.arrow import pa, pa_csv, pyarrow_module
from monolith.data.sources.line_dataset import BLOCK_BYTES, FoundColumns, LineDataset, Rejected, bytes_of_a_task
from monolith.data.sources.wanted_columns import (
    fitting_columns,
    found_types,
    looks_like_a_number,
    type_to_read,
    wanted_columns,
)
from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.data.records.bad_records import BadRecords
    from monolith.data.sources.file_patterns import Paths
    from monolith.data.sources.file_set import Files
    from monolith.data.sources.line_blocks import LineBlocks
    from monolith.data.sources.wanted_columns import Columns

_DELIMITERS = (",", "\t", ";", "|")
_BY_ENDING = {".tsv": "\t", ".tab": "\t"}
_BOM = b"\xef\xbb\xbf"


class CsvDataset(LineDataset):
    """The lines of CSV files in batches of about `block_bytes`.

    Types are inferred from the head of the first file, and then hold for all lines: strings become ids by their hash,
    integers int64, other numbers float32; `arrow_columns` has the table of types, and the defaults for missing values.
    An empty cell, ``NA``, ``NULL`` and the like are missing, unless they are quoted.

    Args:
        files: Paths or patterns, or a `FileSet` or `QueuedFiles`; compression is detected by extension, such as
            ``.csv.gz``.
        columns: Names, columns such as ``Ids("genres", separator="|")``, or names with what each must hold: ``ids``,
            ``text``, ``float``, ``int`` and others, see `ColumnType`. None for all columns.
        names: Names of the columns, if the files have no header line.
        delimiter: Delimiter of cells; None: detected from the file's extension and first line.
        encoding: Text encoding.
        newlines_in_values: Whether quoted cells may span lines; reading is slower then.
        missing: Unquoted strings that mean a missing value, instead of the usual ones.
        block_bytes: Approximate uncompressed bytes of a batch; `batch` makes batches of rows.
        compression: Compression of the files.
        cycle_length: Number of files to read at a time, a block of each, round-robin.
        bad: Counts lines with another number of cells, or with a value that does not fit the type of its column, and
            limits how many may be skipped.

    Raises:
        InvalidArgumentError: while reading: a column is missing, or of another type; names file and column.
        DataLossError: while reading: a line that cannot be read; names file and line.
    """

    def __init__(  # noqa: PLR0913 - options of a varied format
        self,
        files: Files | Paths,
        columns: Columns | None = None,
        *,
        names: Sequence[str] | None = None,
        delimiter: str | None = None,
        encoding: str = "utf-8",
        newlines_in_values: bool = False,
        missing: Sequence[str] | None = None,
        block_bytes: int = BLOCK_BYTES,
        compression: Compression | str = Compression.FROM_NAME,
        cycle_length: int = 1,
        bad: BadRecords | None = None,
    ) -> None:
        pyarrow_module("pyarrow.csv", what="CSV files", extra="csv")
        super().__init__(files, block_bytes=block_bytes, compression=compression, cycle_length=cycle_length, bad=bad)
        if delimiter is not None and (len(delimiter) != 1 or not delimiter.isascii()):
            raise ValueError(
                f"delimiter must be one character, got {delimiter!r}; for others, rewrite the file, as by"
                f" sed 's/{delimiter}/\\t/g'"
            )
        self._columns = wanted_columns(columns)
        self._names = None if names is None else _checked_names(list(names), "names")
        self._delimiter = delimiter
        self._encoding = "utf-8" if encoding.lower().replace("_", "-") in {"utf8", "utf-8"} else encoding
        self._newlines_in_values = newlines_in_values
        self._missing = None if missing is None else list(missing)

    @property
    def quote(self) -> bytes | None:
        """Quote byte, inside which a line end is part of a value."""
        return b'"' if self._newlines_in_values else None

    def find_columns(self, path: str, head: bytes) -> FoundColumns:
        """Types by the head of the first file."""
        head = head.removeprefix(_BOM)
        first, _, rest = head.partition(b"\n")
        delimiter = self._delimiter or _delimiter_of(path, first.decode(self._encoding, "replace"))
        names = self._names
        if names is None:
            names, head = self._header_of(first, delimiter, path), rest
        reader = _CsvReader(names, delimiter, self._encoding, self._newlines_in_values, self._missing)
        types = found_types(reader.with_types, head, names)
        schema = pa.schema([(name, types[name]) for name in names])
        fitting, _ = fitting_columns(schema, self._columns, f"file '{path}'")
        for name in fitting:
            types[name] = type_to_read(fitting[name], types[name])
        return FoundColumns(pa.schema([(name, types[name]) for name in names]), fitting, delimiter)

    def begin_file(self, path: str, blocks: LineBlocks, file_columns: FoundColumns) -> _CsvParser:
        """Reads the line of names."""
        names = self._names
        if names is None:
            names = self._header_of(blocks.take_line().removeprefix(_BOM), file_columns.layout, path)
            if missing := [name for name in file_columns.wanted if name not in names]:
                raise InvalidArgumentError(
                    f"file '{path}': there is no column {', '.join(map(repr, missing))}; it has {', '.join(names)}"
                )
        reader = _CsvReader(names, file_columns.layout, self._encoding, self._newlines_in_values, self._missing)
        return _CsvParser(reader, {name: file_columns.schema.field(name).type for name in file_columns.wanted})

    def _header_of(self, line: bytes, delimiter: str, path: str) -> list[str]:
        text = line.decode(self._encoding, "replace").rstrip("\r\n")
        cells = next(csv.reader([text], delimiter=delimiter), [])
        if any(looks_like_a_number(cell) for cell in cells):
            raise InvalidArgumentError(
                f"file '{path}': its first line holds values, not names of columns: {text[:200]!r}; give names=[...]"
            )
        # pandas writes the numbers of rows below an empty name.
        return _checked_names([cell.strip() or f"column_{at}" for at, cell in enumerate(cells)], f"file '{path}'")


class _CsvReader(NamedTuple):
    """How the cells of a file are parsed."""

    names: list[str]
    delimiter: str
    encoding: str
    newlines_in_values: bool
    missing: list[str] | None

    def with_types(
        self, data: bytes | memoryview, types: dict[str, pa.DataType] | None, rejected: list[Rejected]
    ) -> pa.Table:
        """Returns the rows of some lines, with the columns of these types; None: with all, of inferred ones."""
        return self._read(data, types, rejected, bytes_of_a_task(len(data)))

    def _read(self, data: Any, types: dict[str, pa.DataType] | None, rejected: list[Rejected], block_size: int) -> Any:
        if self.encoding != "utf-8":
            data = bytes(data).decode(self.encoding).encode()

        def reject(row: Any) -> str:
            reason = f"expected {row.expected_columns} cells, got {row.actual_columns}: {row.text[:200]!r}"
            rejected.append(Rejected(row.text.encode(self.encoding, "replace"), reason))
            return "skip"

        convert = {} if types is None else {"column_types": types, "include_columns": list(types)}
        if self.missing is not None:
            convert["null_values"] = self.missing
        try:
            return pa_csv.read_csv(
                pa.BufferReader(pa.py_buffer(data)),
                read_options=pa_csv.ReadOptions(column_names=self.names, block_size=block_size),
                parse_options=pa_csv.ParseOptions(
                    delimiter=self.delimiter, newlines_in_values=self.newlines_in_values, invalid_row_handler=reject
                ),
                convert_options=pa_csv.ConvertOptions(
                    strings_can_be_null=True, quoted_strings_can_be_null=False, **convert
                ),
            )
        except pa.ArrowInvalid as error:
            if "straddl" in str(error) and block_size < len(data):  # a line that is longer than a thread's share
                rejected.clear()
                return self._read(data, types, rejected, len(data) + 1)
            raise


class _CsvParser:
    def __init__(self, reader: _CsvReader, types: dict[str, pa.DataType]) -> None:
        self._reader = reader
        self._types = types

    def __call__(self, block: memoryview) -> tuple[pa.Table, list[Rejected]]:
        rejected: list[Rejected] = []
        try:
            return self._reader.with_types(block, self._types, rejected), rejected
        except pa.ArrowInvalid as error:
            raise pa.ArrowInvalid(self._explained(str(error))) from error

    def _explained(self, text: str) -> str:
        """Replaces column numbers in Arrow's message by names, and adds a fix."""
        for at, name in enumerate(self._reader.names):
            text = text.replace(f"In CSV column #{at}:", f"column {name!r}:")
        if "invalid UTF8" in text:
            return f"{text}; set the encoding, such as encoding='latin-1'"
        return f"{text}; set columns={{...: 'text'}} or 'float', or skip such lines with bad=BadRecords(limit=...)"


def _delimiter_of(path: str, line: str) -> str:
    """Detects the delimiter by the extension of the file, or by the most frequent candidate in its first line."""
    for ending, delimiter in _BY_ENDING.items():
        if f"{ending}." in f"{path.lower()}.":
            return delimiter
    unquoted = "".join(line.split('"')[::2])
    return max(_DELIMITERS, key=unquoted.count)


def _checked_names(names: list[str], place: str) -> list[str]:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidArgumentError(f"{place}: columns must have names of their own, got {', '.join(twice)} twice")
    return names
