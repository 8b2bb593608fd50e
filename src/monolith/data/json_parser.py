"""Parses records that are JSON objects, such as messages of a topic, into a `Batch`; needs `monolith-torch[csv]`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from monolith.data.batch import Batch
from monolith.data.records.bad_records import BadRecords
from monolith.data.sources.csv_types import type_to_read
from monolith.data.sources.json_lines_dataset import JsonReader, types_of
from monolith.data.sources.pyarrow_extra import pyarrow_module
from monolith.data.sources.wanted_columns import text_columns, wanted_columns, wanted_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from monolith.data.records.records import Records
    from monolith.data.sources.wanted_columns import Columns

__all__ = ["JsonParser"]


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
        self._wanted = wanted_columns(columns) or {}
        if not self._wanted:
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
        return tuple(self._wanted)

    def parse(self, records: Records | Sequence[bytes]) -> Batch:
        """Returns the batch of these records, in order.

        Raises:
            DataLossError: more records are bad than may be skipped; names the first of them.
        """
        import pyarrow as pa  # noqa: PLC0415 - an extra

        lines = [b" ".join(record.split(b"\n")) for record in records]
        schema = self._schema_of(lines, pa)
        tables = self._tables(JsonReader(schema), lines, records, 0)
        table = pa.concat_tables(tables) if tables else schema.empty_table()
        columns = {
            name: wanted_values(
                table.column(name).combine_chunks(), wanted, name=name, place=f"JSON records: column {name!r}"
            )
            for name, wanted in self._wanted.items()
        }
        return Batch(columns, num_rows=table.num_rows, texts=text_columns(table.schema, self._wanted))

    def _schema_of(self, lines: Iterable[bytes], pa: Any) -> pa.Schema:
        """Types of the columns; for a field that no record had so far, what it is wanted as."""
        with self._lock:
            if len(self._types) < len(self._wanted):
                found = types_of(b"\n".join(lines), self._wanted)[0]
                self._types = {name: found[name] for name in self._wanted if name in found} | self._types
            unseen = {name: type_to_read(wanted, pa.string()) for name, wanted in self._wanted.items()}
            return pa.schema([(name, self._types.get(name, unseen[name])) for name in self._wanted])

    def _tables(
        self, reader: JsonReader, lines: Sequence[bytes], records: Records | Sequence[bytes], first: int
    ) -> list[pa.Table]:
        import pyarrow as pa  # noqa: PLC0415 - an extra

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
        return self._tables(reader, lines[:half], records, first) + self._tables(
            reader, lines[half:], records, first + half
        )
