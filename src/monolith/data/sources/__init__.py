"""Sources of elements: files of records, Parquet, memory, a function.

Read `file_set` (which files, in which order), then `file_dataset` (how they are read round-robin), then the formats.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
