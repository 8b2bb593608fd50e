"""Files of predictions: Parquet, CSV and JSON lines, chosen by the file name's extension."""

from __future__ import annotations

import csv
import importlib
import json
import math
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from monolith.errors import InvalidArgumentError, UnimplementedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.train.predict.rows import Column

__all__ = ["PredictionFile", "prediction_file_for"]

_ROW_GROUP_ROWS = 1 << 16


class PredictionFile(ABC):
    """Writes columns batch by batch. Belongs to one thread."""

    @abstractmethod
    def __init__(self, path: Path) -> None: ...

    @abstractmethod
    def write(self, columns: Mapping[str, Column]) -> None:
        """Appends the rows of a batch; the first batch defines the columns."""

    @abstractmethod
    def close(self) -> None:
        """Writes what is left."""


def prediction_file_for(path: str | os.PathLike[str]) -> type[PredictionFile]:
    """Returns the writer for a file of this name.

    Raises:
        InvalidArgumentError: the name has another extension.
        UnimplementedError: Parquet is requested, and pyarrow is not installed.
    """
    end = Path(path).suffix.lower()
    if end not in _FILES:
        raise InvalidArgumentError(
            f"file '{os.fspath(path)}': the suffix sets the format, expected one of {', '.join(_FILES)}, got"
            f" {end or 'none'!r}"
        )
    if end == ".parquet":
        _import_pyarrow()
    return _FILES[end]


class ParquetPredictions(PredictionFile):
    """Columns with the types of the first batch; several numbers a row are a list."""

    def __init__(self, path: Path) -> None:
        self._arrow, self._parquet = _import_pyarrow()
        self._path = path
        self._writer: Any = None
        self._waiting: list[Any] = []
        self._rows = 0

    def write(self, columns: Mapping[str, Column]) -> None:
        """Gathers rows to groups that compress and scan well."""
        schema = None if self._writer is None and not self._waiting else (self._waiting or [self._writer])[0].schema
        arrays = {name: self._array(column) for name, column in columns.items()}
        self._waiting.append(self._arrow.table(arrays, schema=schema))
        self._rows += self._waiting[-1].num_rows
        if self._rows >= _ROW_GROUP_ROWS:
            self._flush()

    def close(self) -> None:
        """Closes the file; without rows it has no columns, either."""
        self._flush()
        if self._writer is None:
            self._writer = self._parquet.ParquetWriter(self._path, self._arrow.schema([]))
        self._writer.close()

    def _flush(self) -> None:
        if not self._waiting:
            return
        table = self._arrow.concat_tables(self._waiting)
        if self._writer is None:
            self._writer = self._parquet.ParquetWriter(self._path, table.schema)
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._waiting, self._rows = [], 0

    def _array(self, column: Column) -> Any:
        if isinstance(column, list):
            made = self._arrow.array(column)
            is_unknown = made.type == self._arrow.list_(self._arrow.null())  # no row of the batch has a value
            return made.cast(self._arrow.list_(self._arrow.int64())) if is_unknown else made
        flat = self._arrow.array(np.ascontiguousarray(column).reshape(-1))
        return flat if column.ndim == 1 else self._arrow.FixedSizeListArray.from_arrays(flat, column.shape[1])


class _TextPredictions(PredictionFile):
    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("w", encoding="utf-8", newline="")

    def close(self) -> None:
        """Writes what is left."""
        self._file.close()


class CsvPredictions(_TextPredictions):
    """A line of names, then a line for each row; several numbers a row are several columns, ``name_0`` and so on."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._csv = csv.writer(self._file, lineterminator="\n")
        self._has_names = False

    def write(self, columns: Mapping[str, Column]) -> None:
        """Lists stand in their cell as JSON."""
        named = [pair for name, column in columns.items() for pair in _flat(name, column)]
        if not self._has_names:
            self._csv.writerow([name for name, _ in named])
            self._has_names = True
        cells = [[_cell(value) for value in _values(column)] for _, column in named]
        self._csv.writerows(zip(*cells, strict=True))


class JsonLinesPredictions(_TextPredictions):
    """An object for each row; what JSON has no number for, NaN and infinity, is null."""

    def write(self, columns: Mapping[str, Column]) -> None:
        """Appends rows; several numbers per row become a list."""
        names = list(columns)
        rows = zip(*(_values(column) for column in columns.values()), strict=True)
        for row in rows:
            self._file.write(json.dumps(dict(zip(names, map(_jsonable, row), strict=True)), ensure_ascii=False) + "\n")


_FILES: dict[str, type[PredictionFile]] = {
    ".parquet": ParquetPredictions,
    ".csv": CsvPredictions,
    ".jsonl": JsonLinesPredictions,
}


def _flat(name: str, column: Column) -> list[tuple[str, Column]]:
    if isinstance(column, list) or column.ndim == 1:
        return [(name, column)]
    return [(f"{name}_{place}", column[:, place]) for place in range(column.shape[1])]


def _values(column: Column) -> list[Any]:
    """Returns plain values; float32 as the shortest decimal that parses back to it."""
    if isinstance(column, list):
        return column
    if column.dtype in {np.dtype(np.float32), np.dtype(np.float16)}:
        texts: list[Any] = column.astype(np.str_).tolist()
        return [[float(text) for text in each] if isinstance(each, list) else float(each) for each in texts]
    values: list[Any] = column.tolist()
    return values


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list) else value


def _jsonable(value: Any) -> Any:
    if isinstance(value, list):
        return [_jsonable(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _import_pyarrow() -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise UnimplementedError(
            "a Parquet file of predictions needs pyarrow, which is not installed; run: pip install"
            " 'monolith-torch[parquet]', or write a .csv or .jsonl file"
        ) from error
