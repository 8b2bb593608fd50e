"""JSON lines as batches: files as a dataset, and a parser of records; need `monolith-torch[csv]`."""

from __future__ import annotations

import json
import logging
import threading
from typing import TYPE_CHECKING, Any

from monolith.data.records.bad_records import BadRecords
from monolith.data.records.compression import Compression
from monolith.data.sources.arrow import pa, pa_json, pyarrow_module
from monolith.data.sources.line_dataset import BLOCK_BYTES, FoundColumns, LineDataset, Rejected, bytes_of_a_task
from monolith.data.sources.wanted_columns import batch_of_table, fitting_columns, type_to_read, wanted_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from monolith.data.batch import Batch
    from monolith.data.records.records import Records
    from monolith.data.sources.file_patterns import Paths
    from monolith.data.sources.file_set import Files
    from monolith.data.sources.line_blocks import LineBlocks
    from monolith.data.sources.wanted_columns import Columns, Wanted

_LOG = logging.getLogger(__name__)


class JsonLinesDataset(LineDataset):
    """Files with a JSON object on each line, in batches of about `block_bytes`.

    Types are inferred from the first lines of the first file, and then hold for all: strings and lists of strings
    become ids by their hash, integers int64, other numbers float32, lists `Ragged`; `arrow_columns` has the table of
    types, and the defaults for missing values. A field that is not in a line, or null, is missing. A field that holds
    objects, or values of several kinds, is skipped with a warning.

    Args:
        files: Paths or patterns, or a `FileSet` or `QueuedFiles`; compression is detected by extension, such as
            ``.jsonl.gz``.
        columns: Names, columns such as ``Ids("genres")``, or names with what each must hold, see `ColumnType`. None for
            all fields of the first lines.
        block_bytes: Approximate uncompressed bytes of a batch; `batch` makes batches of rows.
        compression: Compression of the files.
        cycle_length: Number of files to read at a time, a block of each, round-robin.
        bad: Counts lines that are not objects, or whose values do not fit, and limits how many may be skipped.

    Raises:
        InvalidArgumentError: while reading: a column is missing, or of another type.
        DataLossError: while reading: a line that cannot be read; names file and line.
    """

    def __init__(
        self,
        files: Files | Paths,
        columns: Columns | None = None,
        *,
        block_bytes: int = BLOCK_BYTES,
        compression: Compression | str = Compression.FROM_NAME,
        cycle_length: int = 1,
        bad: BadRecords | None = None,
    ) -> None:
        pyarrow_module("pyarrow.json", what="JSON lines", extra="csv")
        super().__init__(files, block_bytes=block_bytes, compression=compression, cycle_length=cycle_length, bad=bad)
        self._columns = wanted_columns(columns)

    def find_columns(self, path: str, head: bytes) -> FoundColumns:
        """Types by the first lines of the first file."""
        types, odd = types_of(head, self._columns or {})
        fitting, _ = fitting_columns(pa.schema(list(types.items())), self._columns, f"file '{path}'")
        if self._columns is None:
            for name, kinds in odd.items():
                _LOG.warning("file '%s': field %r is skipped: it holds %s", path, name, kinds)
        return FoundColumns(pa.schema(list(types.items())), fitting)

    def begin_file(self, path: str, blocks: LineBlocks, file_columns: FoundColumns) -> JsonReader:  # noqa: ARG002 - no header
        """Returns a reader; there is no header before the lines."""
        return JsonReader(pa.schema([file_columns.schema.field(name) for name in file_columns.wanted]))


def types_of(head: bytes, columns: Mapping[str, Wanted]) -> tuple[dict[str, pa.DataType], dict[str, str]]:
    """Returns the type that each field is read as, and the fields without a common type, with their types."""
    fields, odd = found_fields(head)
    return {name: _type_to_read(columns.get(name), kind) for name, kind in fields.items()}, odd


def _type_to_read(column: Wanted | None, inferred: pa.DataType) -> pa.DataType:
    """Numbers may be read as other numbers; Arrow does not make texts of the numbers of JSON, nor the other way."""
    if column is None or not (pa.types.is_integer(inferred) or pa.types.is_floating(inferred)):
        return inferred
    kind = type_to_read(column, inferred)
    return inferred if pa.types.is_string(kind) else kind


class JsonReader:
    """Reads JSON objects, each on a line of its own, with the columns of a schema; other fields are stepped over."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def __call__(self, block: memoryview) -> tuple[pa.Table, list[Rejected]]:
        """Returns the rows of some lines."""
        return self.read(block), []

    def read(self, block: memoryview) -> pa.Table:
        """Returns the rows of some lines; raises `pa.ArrowInvalid` where one is no object, or does not fit."""
        if not bytes(block[:4096]).strip() and not bytes(block).strip():
            return self._schema.empty_table()
        try:
            return self._read(block, bytes_of_a_task(len(block)))
        except pa.ArrowInvalid as error:
            if "straddl" not in str(error):  # a line that is longer than a thread's share
                raise
        return self._read(block, len(block) + 1)

    def _read(self, block: memoryview, block_size: int) -> pa.Table:
        return pa_json.read_json(
            pa.BufferReader(pa.py_buffer(block)),
            read_options=pa_json.ReadOptions(block_size=block_size),
            parse_options=pa_json.ParseOptions(explicit_schema=self._schema, unexpected_field_behavior="ignore"),
        )


_MOST_LOOKED_AT = 10_000
_NOTHING = "nothing"
_KINDS = {type(None): _NOTHING, bool: "flag", int: "int", float: "float", str: "text"}


def found_fields(head: bytes) -> tuple[dict[str, pa.DataType], dict[str, str]]:
    """Returns the type of each field, and the fields whose values have no common type, with their types.

    Lines that are not objects are left to the reader.
    """
    kinds: dict[str, set[str]] = {}
    for line in head.splitlines()[:_MOST_LOOKED_AT]:
        try:
            fields = json.loads(line)
        except ValueError:
            continue
        if isinstance(fields, dict):
            for name, value in fields.items():
                kinds.setdefault(name, set()).add(_kind(value))
    types: dict[str, pa.DataType] = {}
    odd: dict[str, str] = {}
    for name, seen in kinds.items():
        kind = _common(seen)
        if kind is None:
            odd[name] = " and ".join(sorted(seen - {_NOTHING}))
        else:
            types[name] = _arrow_type(kind)
    return types, odd


def _kind(value: Any) -> str:
    if isinstance(value, list):
        inner = _common({_kind(element) for element in value})
        return f"list of {inner}" if inner is not None else "mixed list"
    if isinstance(value, int) and not isinstance(value, bool) and not -(1 << 63) <= value < 1 << 63:
        return "large int" if 0 <= value < 1 << 64 else "float"
    return _KINDS.get(type(value), "object")


def _common(kinds: Iterable[str]) -> str | None:
    """Returns the kind that holds all of these; None: there is none."""
    seen = set(kinds) - {_NOTHING}
    if not seen:
        return _NOTHING
    if all(kind.startswith("list of ") for kind in seen):
        inner = _common({kind.removeprefix("list of ") for kind in seen})
        return None if inner is None else f"list of {inner}"
    for wider in ({"int", "float"}, {"int", "large int"}):
        if seen == wider:
            return "float" if "float" in wider else "large int"
    kind = next(iter(seen))
    return kind if len(seen) == 1 and kind not in {"object", "mixed list"} else None


def _arrow_type(kind: str) -> pa.DataType:
    if kind.startswith("list of "):
        return pa.list_(_arrow_type(kind.removeprefix("list of ")))
    types = {"flag": pa.bool_(), "int": pa.int64(), "large int": pa.uint64(), "float": pa.float64()}
    return types.get(kind, pa.string())


class JsonParser:
    """Parses records of JSON into batches of the same columns, as `JsonLinesDataset` does with lines; thread-safe.

    The types of fields are those of the first records that have them.

    >>> parser = JsonParser({"user": "ids", "age": "float"})
    >>> parser.parse([b'{"user": "ann", "age": 31}', b'{"user": "bob"}'])["age"]
    tensor([31., nan])

    Args:
        columns: Names, columns such as ``Ids("user")``, or names with what each must hold, see `ColumnType`.
        bad: Counts records that are not JSON objects, or whose values do not fit, and limits how many may be skipped.
    """

    def __init__(self, columns: Columns, *, bad: BadRecords | None = None) -> None:
        pyarrow_module("pyarrow.json", what="JSON records", extra="csv")
        self._columns = wanted_columns(columns) or {}
        if not self._columns:
            raise ValueError("JsonParser: expected columns, got none")
        self.bad = BadRecords() if bad is None else bad
        self._types: dict[str, pa.DataType] = {}
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for another process, without the lock."""
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self._columns)

    def parse(self, records: Records | Sequence[bytes]) -> Batch:
        """Returns the batch of these records, in order.

        Raises:
            DataLossError: more records are bad than may be skipped; names the first of them.
        """
        lines = [b" ".join(record.split(b"\n")) for record in records]
        schema = self._schema_of(lines)
        tables = self._tables(JsonReader(schema), lines, records, 0)
        table = pa.concat_tables(tables) if tables else schema.empty_table()
        return batch_of_table(table, self._columns, "JSON records")

    def _schema_of(self, lines: Iterable[bytes]) -> pa.Schema:
        """Types of the columns; for a field that no record had so far, what it is wanted as."""
        with self._lock:
            if len(self._types) < len(self._columns):
                types = types_of(b"\n".join(lines), self._columns)[0]
                self._types = {name: types[name] for name in self._columns if name in types} | self._types
            unseen = {name: type_to_read(column, pa.string()) for name, column in self._columns.items()}
            return pa.schema([(name, self._types.get(name, unseen[name])) for name in self._columns])

    def _tables(
        self, reader: JsonReader, lines: Sequence[bytes], records: Records | Sequence[bytes], first: int
    ) -> list[pa.Table]:
        if not lines:
            return []
        try:
            table = reader.read(memoryview(b"\n".join(lines)))
            if table.num_rows == len(lines):
                return [table]
            problem = f"expected a JSON object in each record, got {table.num_rows} in {len(lines)}"
        except pa.ArrowInvalid as error:
            problem = str(error)
        if len(lines) == 1:
            place = records.place_of(first) if hasattr(records, "place_of") else f"record {first}"
            self.bad.add(f"{place}: {problem}")
            return []
        half = len(lines) // 2
        tables = self._tables(reader, lines[:half], records, first)
        return tables + self._tables(reader, lines[half:], records, first + half)
