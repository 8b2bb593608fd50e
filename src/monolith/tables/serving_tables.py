"""Serving tables built from a schema, for a process that has rows but no training code."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from monolith.errors import UnimplementedError
from monolith.tables import compressors, row_optimizers
from monolith.tables.local.store import LocalStore
from monolith.tables.table_config import Segment, TableConfig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from monolith.tables.schema import Schema, SegmentSchema, TableSchema

_SHARED_STATE = "hessian_compression_times"
"""The one option of a row optimizer that the size of its state depends on."""


def serving_tables(schema: Schema) -> dict[str, TableConfig]:
    """Returns tables that load and return the serving rows of a schema byte for byte.

    Settings that a schema does not contain are missing: rows do not expire here, and the range of a compressor is not
    available, so that rows can be stored and forwarded, but those of `FixedR8` and `OneBit` cannot be looked up.

    Raises:
        UnimplementedError: a segment is of a kind that this build does not have.

    >>> from monolith.tables.schema import Schema
    >>> trained = LocalStore({"item": TableConfig([Segment(4, optimizer=row_optimizers.Adagrad())])})
    >>> LocalStore(serving_tables(trained.schema)).schema.tables[0].text
    'monolith-table/1;serving=1;segment=4,adagrad,16,fp32,16'
    """
    return {table.name: _table(table) for table in schema.tables}


def _table(table: TableSchema) -> TableConfig:
    segments = [_segment(table.name, segment) for segment in table.segments]
    return TableConfig(segments, name=table.name, serving=True, wide_slots=table.wide_slots)


def _segment(table: str, schema: SegmentSchema) -> Segment:
    for candidate in _candidates(schema):
        if _schema_of(candidate) == schema:
            return candidate
    raise UnimplementedError(f"table {table!r}: this build has no segment of the form {schema.text}")


def _candidates(schema: SegmentSchema) -> Iterator[Segment]:
    compressor = _of_kind(compressors, schema.compressor)
    optimizer = _of_kind(row_optimizers, schema.optimizer)
    if compressor is None or optimizer is None:
        return
    yield Segment(schema.dim, optimizer=optimizer(), compressor=compressor())
    if hasattr(optimizer, _SHARED_STATE):
        for times in range(2, schema.dim + 1):
            yield Segment(schema.dim, optimizer=optimizer(**{_SHARED_STATE: times}), compressor=compressor())


def _of_kind(module: ModuleType, kind: str) -> Any:
    """Returns the public class of a module whose kind has this name; None: there is none."""
    named = (getattr(module, name) for name in module.__all__)
    return next((kind_class for kind_class in named if getattr(kind_class, "kind", None) == kind), None)


@functools.lru_cache(maxsize=256)
def _schema_of(segment: Segment) -> SegmentSchema:
    return LocalStore({"one": TableConfig([segment])}).schema.tables[0].segments[0]
