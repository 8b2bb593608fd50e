"""The tables of an export as JSON: schema, compression and expiry of their rows."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from monolith.errors import DataLossError, InvalidArgumentError
from monolith.tables import Schema, TableSchema, compressors, serving_tables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.tables import Compressor, TableConfig

_COMPRESSORS: dict[str, type[Compressor]] = {
    kind.kind: kind
    for kind in (compressors.Bf16, compressors.FixedR8, compressors.Fp16, compressors.Fp32, compressors.OneBit)
}


def describe_tables(schema: Schema, configs: Mapping[str, TableConfig], *, skip_zero: bool) -> dict[str, Any]:
    """Returns table -> description that a reader needs for its serving rows."""
    described = {}
    for table in schema.tables:
        config = configs[table.name]
        described[table.name] = {
            "schema": replace(table, serving=True).text,
            "compressors": [[each.compressor.kind, asdict(each.compressor)] for each in config.segments],
            "expire_days": config.expire_days,
            "slot_expire_days": {str(slot): days for slot, days in sorted(config.slot_expire_days.items())},
            "skip_zero": skip_zero,
        }
    return described


def schema_of(described: Mapping[str, Any], *, origin: str) -> Schema:
    """Returns the schema of the serving rows."""
    try:
        return Schema(tuple(TableSchema.parse(name, described[name]["schema"]) for name in sorted(described)))
    except (KeyError, TypeError, AttributeError) as error:
        raise DataLossError(f"{origin}: not the description of tables: {error!r}") from error


def tables_of(described: Mapping[str, Any], *, origin: str) -> dict[str, TableConfig]:
    """Returns configs of serving tables for these rows.

    Raises:
        DataLossError: the description was not written by `describe_tables`.
        UnimplementedError: this build does not support a kind of segment.
    """
    made = serving_tables(schema_of(described, origin=origin))
    try:
        return {name: _table(config, described[name]) for name, config in made.items()}
    except (KeyError, TypeError, ValueError, AttributeError, InvalidArgumentError) as error:
        raise DataLossError(f"{origin}: not the description of tables: {error!r}") from error


def _table(config: TableConfig, described: Mapping[str, Any]) -> TableConfig:
    segments = [
        replace(segment, compressor=_COMPRESSORS[kind](**options))
        for segment, (kind, options) in zip(config.segments, described["compressors"], strict=True)
    ]
    return replace(
        config,
        segments=segments,
        expire_days=int(described["expire_days"]),
        slot_expire_days={int(slot): int(days) for slot, days in described["slot_expire_days"].items()},
        skip_zero=bool(described["skip_zero"]),
    )
