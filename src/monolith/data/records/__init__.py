"""Files of records: framings, compression, reading, writing, and records that cannot be read."""

from __future__ import annotations

__all__: list[str] = []
