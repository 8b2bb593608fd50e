"""Schema of the rows of a log: those of the tables, compressed for serving."""

from __future__ import annotations

from dataclasses import replace

from monolith.tables.schema import Schema


def serving_schema(schema: Schema) -> Schema:
    """Returns the schema of the serving rows of a store, which its follower has as well."""
    return Schema(tuple(replace(table, serving=True) for table in schema.tables))
