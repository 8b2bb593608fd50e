"""Sources of elements: files of records, Parquet, memory, a function.

Read `file_set` (which files, in which order), then `file_dataset` (how they are read round-robin), then the formats.
"""

__all__: list[str] = []
