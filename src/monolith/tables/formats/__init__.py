"""Byte formats of rows: blocks in memory and on the wire, dumps of ByteDance Monolith, Parquet files."""

from __future__ import annotations

__all__: list[str] = []
