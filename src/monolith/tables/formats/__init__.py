"""Byte formats of rows: blocks in memory and on the wire, dumps of ByteDance Monolith, Parquet files."""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
