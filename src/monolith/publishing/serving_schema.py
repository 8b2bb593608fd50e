"""What the rows of a log look like: those of the tables, compressed for serving."""

from __future__ import annotations

from dataclasses import replace

from monolith.tables.schema import Schema


def serving_schema(schema: Schema) -> Schema:
    """The schema of the serving rows of a store; that of its follower is the same."""
    return Schema(tuple(replace(table, serving=True) for table in schema.tables))
