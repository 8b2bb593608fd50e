"""Tables: files of Parquet, CSV and JSON lines, whose columns have types; and Examples as rows of Parquet and back.

As rows, Examples have a column for each feature, ``__LABEL__``, and ``__<FIELD>__`` for line ids. Arrow has no type for
ids, so the metadata of a column names the list of the feature that it was. Columns without that become lists of
integers, floats or bytes, unless they are named as ids.
"""

from __future__ import annotations

import datetime as dt
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias

from monolith.data import LABEL_FEATURE as LABEL
from monolith.data import LINE_ID_COLUMNS, SOURCE_KEY_COLUMN
from monolith.data import WEIGHT_FEATURE as WEIGHT
from monolith.data.protos.example_pb2 import Example
from monolith.data.records import Compression
from monolith.data.sources import CsvDataset, JsonLinesDataset, ParquetDataset, pyarrow_module
from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from monolith.data import Batch, Dataset
    from monolith.data.records import BadRecords
    from monolith.data.sources import FileSet, LineDataset

_ROWS_OF_A_BLOCK = 4096
_CSV = {".csv", ".tsv", ".tab"}
_JSON_LINES = {".jsonl", ".ndjson"}


class ParquetTables:
    """Parquet files as input."""

    def __init__(self, files: FileSet, bad: BadRecords) -> None:
        self._files = files
        self._bad = bad

    @property
    def batches(self) -> Dataset[Batch]:
        """The rows as batches."""
        return ParquetDataset(self._files, bad=self._bad)

    @property
    def schema(self) -> Any:
        """The schema of the first file."""
        with self._files.open(self._files.files[0]) as file:
            return self._opened(file, self._files.files[0]).schema_arrow

    def tables(self) -> Iterator[tuple[str, Any]]:
        """Yields the rows as Arrow has them, some at a time, with the place that the first of them comes from."""
        for path in self._files.files:
            with self._files.open(path) as file:
                row = 0
                for block in self._opened(file, path).iter_batches(batch_size=_ROWS_OF_A_BLOCK):
                    yield f"file '{path}': row {row}", block
                    row += block.num_rows

    def _opened(self, file: Any, path: str) -> Any:
        pa = pyarrow()
        try:
            return pa.parquet.ParquetFile(file)
        except pa.ArrowInvalid as error:
            raise InvalidArgumentError(f"file '{path}': no Parquet that can be read: {error}") from error


class LineTables:
    """Files of CSV or JSON lines as input."""

    def __init__(self, dataset: LineDataset) -> None:
        self._dataset = dataset

    @property
    def batches(self) -> Dataset[Batch]:
        """The rows as batches."""
        return self._dataset

    @property
    def schema(self) -> Any:
        """As the head of the first file shows."""
        return self._dataset.schema

    def tables(self) -> Iterator[tuple[str, Any]]:
        """Yields the rows as Arrow has them, some at a time, with the place that the first of them comes from."""
        for path, line, table in self._dataset.tables():
            yield f"file '{path}': line {line + 1}", table


TableFiles: TypeAlias = ParquetTables | LineTables
"""Input files that have columns."""


def line_tables(files: FileSet, compression: Compression, bad: BadRecords) -> LineTables | None:
    """Returns the files as CSV or JSON lines by their extensions; None: neither."""
    endings = {_ending(path) for path in files.files}
    for known, dataset in ((_CSV, CsvDataset), (_JSON_LINES, JsonLinesDataset)):
        if endings <= known:
            return LineTables(dataset(files, compression=compression, bad=bad))
    return None


def _ending(path: str) -> str:
    name = PurePosixPath(path)
    if Compression.FROM_NAME.resolve(path) is not Compression.NONE:
        name = name.with_suffix("")
    return name.suffix.lower()


_KIND = b"monolith.kind"


def pyarrow() -> Any:
    """Returns the library; raises UnimplementedError if it is not installed."""
    pyarrow_module("pyarrow.parquet", what="Parquet files", extra="parquet")
    return pyarrow_module("pyarrow", what="Parquet files", extra="parquet")


def table_of(examples: Sequence[Example], schema: Any = None, *, drop: bool = False) -> Any:
    """Returns the examples as an Arrow table, with the columns of a schema or with those that they have."""
    pa = pyarrow()
    rows = [_row_of(example, drop=drop) for example in examples]
    kinds = {name: kind for row in rows for name, (kind, _) in row.items()}
    if schema is None:
        schema = pa.schema(
            [pa.field(name, _arrow_type(kind), metadata={_KIND: kind}) for name, kind in sorted(kinds.items())]
        )
    elif unknown := sorted(kinds.keys() - set(schema.names)):
        raise InvalidArgumentError(
            f"feature {', '.join(map(repr, unknown))} comes up when the columns of the Parquet file are fixed "
            "already; give a greater --look-ahead"
        )
    arrays = []
    for field in schema:
        kind = field.metadata[_KIND].decode()
        if wrong := next(
            (row[field.name][0] for row in rows if field.name in row and row[field.name][0] != kind), None
        ):
            raise InvalidArgumentError(f"feature {field.name!r} is {kind} in some samples and {wrong} in others")
        arrays.append(pa.array([row.get(field.name, (kind, None))[1] for row in rows], field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def _row_of(example: Example, *, drop: bool) -> dict[str, tuple[str, Any]]:
    """Column -> kind and value."""
    row: dict[str, tuple[str, Any]] = {}
    if example.named_raw_feature and not drop:
        raise InvalidArgumentError(f"raw feature {example.named_raw_feature[0].name!r} has no form in Parquet here")
    for named in example.named_feature:
        kind = named.feature.WhichOneof("type")
        if kind is None or (drop and not kind.endswith("_list")):
            continue
        if not kind.endswith("_list"):
            raise InvalidArgumentError(f"feature {named.name!r}: a {kind} has no form in Parquet here")
        if named.name in row:
            raise InvalidArgumentError(f"feature {named.name!r} occurs twice in one Example; a row has one value of it")
        # Arrow's ids are signed, as tensors have them.
        values = getattr(named.feature, kind).value
        row[named.name] = (kind, [_signed(value) for value in values] if kind.startswith("fid") else list(values))
    return row | _typed_fields(example)


def _typed_fields(example: Example) -> dict[str, tuple[str, Any]]:
    row: dict[str, tuple[str, Any]] = {}
    if example.label:
        row[LABEL] = ("label", list(example.label))
    if example.instance_weight:
        row[WEIGHT] = ("weight", example.instance_weight)
    if example.data_source_key:
        row[SOURCE_KEY_COLUMN] = ("source_key", example.data_source_key)
    for column, field in LINE_ID_COLUMNS.items():
        value = getattr(example.line_id, field.name)
        if _is_repeated(field):
            if len(value):
                row[column] = ("line_ids", list(value))
        elif example.line_id.HasField(field.name):
            row[column] = (_scalar_kind(field), _signed(value) if isinstance(value, int) else value)
    return row


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 > 0 else number


def _is_repeated(field: Any) -> bool:
    return bool(field.is_repeated)


def _scalar_kind(field: Any) -> str:
    kinds = {field.CPPTYPE_FLOAT: "line_float", field.CPPTYPE_STRING: "line_text", field.CPPTYPE_BOOL: "line_bool"}
    return kinds.get(field.cpp_type, "line_int")


def _arrow_type(kind: str) -> Any:
    pa = pyarrow()
    if kind in {"fid_v1_list", "fid_v2_list", "int64_list", "line_ids"}:
        return pa.list_(pa.int64())
    if kind in {"float_list", "label"}:
        return pa.list_(pa.float32())
    scalars = {
        "double_list": pa.list_(pa.float64()),
        "bytes_list": pa.list_(pa.binary()),
        "weight": pa.float32(),
        "line_float": pa.float32(),
        "line_text": pa.string(),
        "line_bool": pa.bool_(),
        "line_int": pa.int64(),
        "source_key": pa.int64(),
    }
    return scalars[kind]


def examples_in(tables: TableFiles, *, ids: Collection[str] = ()) -> Iterator[tuple[str, Example]]:
    """Yields every row as an Example, with its place; `ids` are columns of v2 ids that no metadata marks."""
    for place, table in tables.tables():
        start, _, first = place.rpartition(" ")
        kinds = {field.name: _kind_of(field, ids, start) for field in table.schema}
        for number, row in enumerate(table.to_pylist(), int(first)):
            yield f"{start} {number}", _example_of(row, kinds)


def _kind_of(field: Any, ids: Collection[str], place: str) -> str:
    pa = pyarrow()
    if field.metadata and _KIND in field.metadata:
        return str(field.metadata[_KIND].decode())
    values = field.type.value_type if pa.types.is_list(field.type) or pa.types.is_large_list(field.type) else field.type
    if field.name in {LABEL, SOURCE_KEY_COLUMN} or (field.name == "label" and _are_numbers(values, pa)):
        return "source_key" if field.name == SOURCE_KEY_COLUMN else "label"
    if field.name in LINE_ID_COLUMNS:
        return "line_ids" if _is_repeated(LINE_ID_COLUMNS[field.name]) else "line_int"
    if pa.types.is_integer(values) or pa.types.is_boolean(values) or pa.types.is_temporal(values):
        return "fid_v2_list" if field.name in ids else "int64_list"
    if pa.types.is_floating(values) or pa.types.is_decimal(values):
        return "weight" if field.name == WEIGHT else "float_list"
    if pa.types.is_binary(values) or pa.types.is_string(values) or pa.types.is_large_string(values):
        return "bytes_list"
    raise InvalidArgumentError(f"{place}: column {field.name!r} of type {field.type} has no form in an Example")


def _are_numbers(kind: Any, pa: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _example_of(row: dict[str, Any], kinds: dict[str, str]) -> Example:
    example = Example()
    for name, value in row.items():
        kind = kinds[name]
        if value is None:
            continue
        if kind.endswith("_list"):
            target = getattr(example.named_feature.add(name=name, id=len(example.named_feature)).feature, kind)
            target.value.extend(_feature_values(value if isinstance(value, list) else [value], kind))
            target.SetInParent()
        else:
            _put_typed_field(example, name, kind, value)
    return example


def _feature_values(values: list[Any], kind: str) -> list[Any]:
    if kind.startswith("fid"):
        return [value % (1 << 64) for value in values]
    if kind == "bytes_list":
        return [value.encode() if isinstance(value, str) else value for value in values]
    if kind == "int64_list":
        return [_whole(value) for value in values]
    return [float(value) for value in values] if kind in {"float_list", "double_list"} else values


def _whole(value: Any) -> int:
    """Returns an integer as Arrow keeps it: days or seconds of a date or time, the signed reading of an id."""
    if isinstance(value, dt.datetime):
        return int(value.replace(tzinfo=value.tzinfo or dt.UTC).timestamp())
    if isinstance(value, dt.date):
        return (value - dt.date(1970, 1, 1)).days
    if isinstance(value, dt.time):
        return value.hour * 3600 + value.minute * 60 + value.second
    return _signed(int(value))


def _put_typed_field(example: Example, name: str, kind: str, value: Any) -> None:
    if kind == "label":
        example.label.extend(value if isinstance(value, list) else [value])
    elif kind == "weight":
        example.instance_weight = value
    elif kind == "source_key":
        example.data_source_key = value
    elif kind == "line_ids":
        getattr(example.line_id, LINE_ID_COLUMNS[name].name).extend(value if isinstance(value, list) else [value])
    else:
        field = LINE_ID_COLUMNS[name]
        is_unsigned = field.type in {field.TYPE_FIXED64, field.TYPE_UINT64}
        setattr(example.line_id, field.name, value % (1 << 64) if is_unsigned else value)
