"""Uses of a read-only session: evaluation, and predictions to a file with columns of the input.

Files are Parquet, CSV or JSON lines, by the extension of their name.
"""

from __future__ import annotations

import csv
import difflib
import importlib
import itertools
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

import numpy as np
import torch
from torch import Tensor

from monolith.data import Dataset
from monolith.errors import InvalidArgumentError, OutOfRangeError, UnimplementedError
from monolith.files import named_errors, replaced_file
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monolith.train.session import Session

PREDICTION = "prediction"
"""Name of the column of a task's only prediction."""

Column: TypeAlias = "np.ndarray[Any, Any] | list[Any]"
"""One entry a row: an array [rows] or [rows, k], or a list of texts, of lists, or of numbers and None."""


class PredictionColumns:
    """Makes the columns of a file from batches and their predictions."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        repeated = sorted({key for key in keys if list(keys).count(key) > 1})
        if repeated:
            raise InvalidArgumentError(f"key columns must differ, got {repeated[0]!r} more than once")
        self._keys = tuple(keys)
        self._single: set[str] = set()
        """Ragged columns that had one value in each row of the first batch."""
        self._names: list[str] | None = None

    def of(self, batch: Any, predictions: Any) -> dict[str, Column]:
        """Returns name -> column; the same names for every batch."""
        columns = {key: self._key_column(key, batch) for key in self._keys}
        predicted = _prediction_columns(predictions)
        clashes = sorted(columns.keys() & predicted.keys())
        if clashes:
            raise InvalidArgumentError(
                f"key column {clashes[0]!r}: a prediction has this name, too; leave the key out or rename that"
            )
        columns |= predicted
        sizes = {name: len(column) for name, column in columns.items()}
        if len(set(sizes.values())) > 1:
            raise InvalidArgumentError(f"predictions must be one for each row of the batch, got {sizes}")
        if self._names is None:
            self._names = list(columns)
        elif self._names != list(columns):
            raise InvalidArgumentError(
                f"predictions must have the same names for every batch, got {list(columns)} after {self._names}"
            )
        return columns

    def _key_column(self, key: str, batch: Any) -> Column:
        if not isinstance(batch, Mapping) or key not in batch:
            names = list(map(str, batch)) if isinstance(batch, Mapping) else []
            close = difflib.get_close_matches(key, names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(names) or 'no columns'}"
            raise InvalidArgumentError(f"key column {key!r}: the batch has no such column; {hint}")
        values = batch[key]
        if isinstance(values, Ragged):
            return self._ragged_column(key, values)
        if isinstance(values, Tensor | np.ndarray):
            return _array(values, f"key column {key!r}")
        return [value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value for value in values]

    def _ragged_column(self, key: str, values: Ragged) -> Column:
        rows = values.to_lists()
        if self._names is None and all(len(row) == 1 for row in rows):
            self._single.add(key)
        if key not in self._single:
            return rows
        longer = next((row for row in rows if len(row) > 1), None)
        if longer is not None:
            raise InvalidArgumentError(
                f"key column {key!r}: it had one value in each row so far, got {longer}; choose a key with one value"
            )
        return [row[0] if row else None for row in rows]


def _prediction_columns(predictions: Any) -> dict[str, Column]:
    if isinstance(predictions, Mapping):
        named = {str(name): values for name, values in predictions.items()}
    elif isinstance(predictions, list | tuple):
        named = {f"{PREDICTION}_{place}": values for place, values in enumerate(predictions)}
    else:
        named = {PREDICTION: predictions}
    for name, values in named.items():
        if not isinstance(values, Tensor | np.ndarray):
            raise InvalidArgumentError(
                f"prediction {name!r}: a tensor is needed, got {type(values).__name__}; let model_fn return"
                " Spec(predictions=...) in mode 'predict'"
            )
    return {name: _array(values, f"prediction {name!r}") for name, values in named.items()}


def _array(values: Tensor | np.ndarray[Any, Any], subject: str) -> np.ndarray[Any, Any]:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim not in {1, 2}:
        raise InvalidArgumentError(f"{subject}: one or several numbers a row are needed, got {list(values.shape)}")
    return values


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
            values = self._arrow.array(column)
            is_unknown = values.type == self._arrow.list_(self._arrow.null())  # no row of the batch has a value
            return values.cast(self._arrow.list_(self._arrow.int64())) if is_unknown else values
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
        cells = [
            [json.dumps(value) if isinstance(value, list) else value for value in _values(column)]
            for _, column in named
        ]
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
        return [[float(text) for text in entry] if isinstance(entry, list) else float(entry) for entry in texts]
    values: list[Any] = column.tolist()
    return values


def _jsonable(value: Any) -> Any:
    if isinstance(value, list):
        return [_jsonable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _import_pyarrow() -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise UnimplementedError(
            "a Parquet file of predictions needs pyarrow, which is not installed; run: pip install"
            " 'monolith-torch[parquet]', or write a .csv or .jsonl file"
        ) from error


def run_batches(session: Session, source: Any, limit: int | None) -> Iterator[None]:
    """Runs a step for each batch, at most `limit`."""
    done = 0
    with session.feed(source) as feed:
        while not session.stop_requested and (limit is None or done < limit):
            try:
                session.run_next(feed)
            except OutOfRangeError:
                return
            done += 1
            yield


def write_predictions(
    session: Session, source: Any, path: str | os.PathLike[str], *, keys: Sequence[str], limit: int | None
) -> int:
    """Runs a step for each batch, at most `limit`, and writes what it predicts; returns the number of rows."""
    columns = PredictionColumns(keys)
    make = prediction_file_for(path)
    reading = source.read() if isinstance(source, Dataset) else iter(source)
    rows = 0
    try:
        with replaced_file(path) as temporary, _named(make(temporary), path) as write:
            for batch in itertools.islice(reading, limit):
                result = session.run(batch)
                write(columns.of(batch, result.predictions))
                rows += result.num_examples
                if session.stop_requested:
                    break
    finally:
        getattr(reading, "close", lambda: None)()
    return rows


@contextmanager
def _named(file: PredictionFile, path: str | os.PathLike[str]) -> Iterator[Callable[[Mapping[str, Column]], None]]:
    """Yields the write function of a file; its errors name the file, those of input and model are unchanged."""

    def write(columns: Mapping[str, Column]) -> None:
        with named_errors(os.fspath(path), "written"):
            file.write(columns)

    try:
        yield write
    finally:
        with named_errors(os.fspath(path), "written"):
            file.close()
