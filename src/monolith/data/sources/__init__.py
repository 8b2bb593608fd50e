"""Where elements come from: files of records, Parquet, memory, a function.

Read `file_set` (which files, in which order), then `file_dataset` (how they are read in turns), then the formats.
"""

__all__: list[str] = []
