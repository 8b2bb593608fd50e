"""Files of JSON lines as a dataset of batches; needs `monolith-torch[csv]`."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from monolith.data.records.compression import Compression
from monolith.data.sources.csv_types import type_to_read
from monolith.data.sources.line_dataset import BLOCK_BYTES, FoundColumns, LineDataset, Rejected, bytes_of_a_task
from monolith.data.sources.pyarrow_extra import pyarrow_module
from monolith.data.sources.wanted_columns import fitting_columns, wanted_columns

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    import pyarrow as pa

    from monolith.data.file_queue.feed import Files
    from monolith.data.records.bad_records import BadRecords
    from monolith.data.sources.line_blocks import LineBlocks
    from monolith.data.sources.wanted_columns import Columns, Wanted

__all__ = ["JsonLinesDataset", "JsonReader", "types_of"]

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
        files: Files | str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        columns: Columns | None = None,
        *,
        block_bytes: int = BLOCK_BYTES,
        compression: Compression | str = Compression.FROM_NAME,
        cycle_length: int = 1,
        bad: BadRecords | None = None,
    ) -> None:
        pyarrow_module("pyarrow.json", what="JSON lines", extra="csv")
        super().__init__(files, block_bytes=block_bytes, compression=compression, cycle_length=cycle_length, bad=bad)
        self._wanted = wanted_columns(columns)

    def find_columns(self, path: str, head: bytes) -> FoundColumns:
        """Types by the first lines of the first file."""
        import pyarrow as pa  # noqa: PLC0415 - an extra

        types, odd = types_of(head, self._wanted or {})
        wanted, _ = fitting_columns(pa.schema(list(types.items())), self._wanted, f"file '{path}'")
        if self._wanted is None:
            for name, kinds in odd.items():
                _LOG.warning("file '%s': field %r is skipped: it holds %s", path, name, kinds)
        return FoundColumns(pa.schema(list(types.items())), wanted)

    def begin_file(self, path: str, blocks: LineBlocks, found: FoundColumns) -> JsonReader:  # noqa: ARG002 - no header
        """Returns a reader; there is no header before the lines."""
        import pyarrow as pa  # noqa: PLC0415 - an extra

        return JsonReader(pa.schema([found.schema.field(name) for name in found.wanted]))


def types_of(head: bytes, wanted: Mapping[str, Wanted]) -> tuple[dict[str, pa.DataType], dict[str, str]]:
    """Returns the type that each field is read as, and the fields without a common type, with their types."""
    import pyarrow as pa  # noqa: PLC0415 - an extra

    found, odd = found_fields(head)
    return {name: _type_to_read(wanted.get(name), kind, pa) for name, kind in found.items()}, odd


def _type_to_read(wanted: Wanted | None, found: pa.DataType, pa: Any) -> pa.DataType:
    """Numbers may be read as other numbers; Arrow does not make texts of the numbers of JSON, nor the other way."""
    if wanted is None or not (pa.types.is_integer(found) or pa.types.is_floating(found)):
        return found
    kind = type_to_read(wanted, found)
    return found if pa.types.is_string(kind) else kind


class JsonReader:
    """Reads JSON objects, each on a line of its own, with the columns of a schema; other fields are stepped over."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def __call__(self, block: memoryview) -> tuple[pa.Table, list[Rejected]]:
        """Returns the rows of some lines."""
        return self.read(block), []

    def read(self, block: memoryview) -> pa.Table:
        """Returns the rows of some lines; raises `pa.ArrowInvalid` where one is no object, or does not fit."""
        import pyarrow as pa  # noqa: PLC0415 - an extra

        if not bytes(block[:4096]).strip() and not bytes(block).strip():
            return self._schema.empty_table()
        try:
            return self._read(block, bytes_of_a_task(len(block)))
        except pa.ArrowInvalid as error:
            if "straddl" not in str(error):  # a line that is longer than a thread's share
                raise
        return self._read(block, len(block) + 1)

    def _read(self, block: memoryview, block_size: int) -> pa.Table:
        import pyarrow as pa  # noqa: PLC0415 - an extra
        from pyarrow import json as pa_json  # noqa: PLC0415 - an extra

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
    found: dict[str, pa.DataType] = {}
    odd: dict[str, str] = {}
    for name, seen in kinds.items():
        kind = _common(seen)
        if kind is None:
            odd[name] = " and ".join(sorted(seen - {_NOTHING}))
        else:
            found[name] = _arrow_type(kind)
    return found, odd


def _kind(value: Any) -> str:
    if isinstance(value, list):
        inner = _common({_kind(each) for each in value})
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
    import pyarrow as pa  # noqa: PLC0415 - an extra

    if kind.startswith("list of "):
        return pa.list_(_arrow_type(kind.removeprefix("list of ")))
    types = {"flag": pa.bool_(), "int": pa.int64(), "large int": pa.uint64(), "float": pa.float64()}
    return types.get(kind, pa.string())
