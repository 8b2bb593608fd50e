"""Inputs that are tables: Parquet, CSV and JSON lines, which have columns with types instead of records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from monolith.data.records.compression import Compression
from monolith.data.sources.csv_dataset import CsvDataset
from monolith.data.sources.json_lines_dataset import JsonLinesDataset
from monolith.data.sources.parquet_dataset import ParquetDataset
from monolith.data.sources.pyarrow_extra import pyarrow_module
from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monolith.data.batch import Batch
    from monolith.data.dataset import Dataset
    from monolith.data.records.bad_records import BadRecords
    from monolith.data.sources.file_set import FileSet
    from monolith.data.sources.line_dataset import LineDataset

__all__ = ["LineTables", "ParquetTables", "TableFiles", "line_tables"]

_ROWS_OF_A_BLOCK = 4096
_CSV = {".csv", ".tsv", ".tab"}
_JSON_LINES = {".jsonl", ".ndjson"}


class TableFiles(ABC):
    """Files of columns."""

    @property
    @abstractmethod
    def batches(self) -> Dataset[Batch]:
        """The rows as batches."""

    @property
    @abstractmethod
    def schema(self) -> Any:
        """Of the first file."""

    @abstractmethod
    def tables(self) -> Iterator[tuple[str, Any]]:
        """Yields the rows as Arrow has them, some at a time, with the place that the first of them comes from."""


class ParquetTables(TableFiles):
    """Parquet files."""

    def __init__(self, files: FileSet, bad: BadRecords) -> None:
        self._files = files
        self._bad = bad

    @property
    def batches(self) -> Dataset[Batch]:
        """The rows as batches."""
        return ParquetDataset(self._files, bad=self._bad)

    @property
    def schema(self) -> Any:
        """Of the first file."""
        with self._files.open(self._files.files[0]) as file:
            return self._opened(file, self._files.files[0]).schema_arrow

    def tables(self) -> Iterator[tuple[str, Any]]:
        """Yields the rows, some at a time."""
        for path in self._files.files:
            with self._files.open(path) as file:
                row = 0
                for block in self._opened(file, path).iter_batches(batch_size=_ROWS_OF_A_BLOCK):
                    yield f"file '{path}': row {row}", block
                    row += block.num_rows

    def _opened(self, file: Any, path: str) -> Any:
        pa = pyarrow_module("pyarrow", what="Parquet files", extra="parquet")
        pq = pyarrow_module("pyarrow.parquet", what="Parquet files", extra="parquet")
        try:
            return pq.ParquetFile(file)
        except pa.ArrowInvalid as error:
            raise InvalidArgumentError(f"file '{path}': no Parquet that can be read: {error}") from error


class LineTables(TableFiles):
    """CSV or JSON lines."""

    def __init__(self, dataset: LineDataset) -> None:
        self._dataset = dataset

    @property
    def batches(self) -> Dataset[Batch]:
        """The rows as batches."""
        return self._dataset

    @property
    def schema(self) -> Any:
        """As the head of the first file shows."""
        return self._dataset.schema

    def tables(self) -> Iterator[tuple[str, Any]]:
        """Yields the rows, some at a time."""
        for path, line, table in self._dataset.tables():
            yield f"file '{path}': line {line + 1}", table


def line_tables(files: FileSet, compression: Compression, bad: BadRecords) -> LineTables | None:
    """Returns the files as CSV or JSON lines by their extensions; None: neither."""
    endings = {_ending(path) for path in files.files}
    for known, dataset in ((_CSV, CsvDataset), (_JSON_LINES, JsonLinesDataset)):
        if endings <= known:
            return LineTables(dataset(files, compression=compression, bad=bad))
    return None


def _ending(path: str) -> str:
    name = PurePosixPath(path)
    if Compression.FROM_NAME.resolve(path) is not Compression.NONE:
        name = name.with_suffix("")
    return name.suffix.lower()
