"""Parquet files as a dataset of batches; needs `monolith-torch[parquet]`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from monolith.data.batch import Batch
from monolith.data.pipeline.stage import KnownLength, whole_number
from monolith.data.records.bad_records import BadRecords
from monolith.data.sources.arrow import pa, pyarrow_module
from monolith.data.sources.file_dataset import FileDataset
from monolith.data.sources.file_set import FileSet
from monolith.data.sources.wanted_columns import (
    fitting_columns,
    is_reserved,
    reserved_column,
    text_columns,
    wanted_columns,
    wanted_values,
    warn_of_left_out,
)
from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError, OpError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monolith.data.batch import ColumnValues
    from monolith.data.sources.file_dataset import OpenFile
    from monolith.data.sources.file_patterns import Paths
    from monolith.data.sources.file_set import Files
    from monolith.data.sources.wanted_columns import Columns, Wanted


class ParquetDataset(FileDataset[Batch]):
    """The columns of Parquet files in batches of at most `block_rows` rows; other columns are not read.

    `arrow_columns` documents how types of Parquet are converted to those of a `Batch`, and the defaults for missing
    values. A batch does not span row groups: `batch` makes batches of one size.

    Args:
        files: Paths or patterns, or a `FileSet` or `QueuedFiles`.
        columns: Names, columns such as ``Ids("user")``, or names with what each must hold: ``any``, ``ids``, ``text``,
            ``int``, ``fid_v1`` (turned into v2), ``fid_v2``, ``float`` or ``bytes``. None for all columns of each file
            with a supported type; the others are skipped with a warning.
        block_rows: Rows of a batch.
        num_labels: Makes typed fields of reserved columns: ``__LABEL__`` becomes ``label``, float32 [rows, num_labels]
            as `Label` gives it, and ``__UID__`` and the like become the field of LineId of that name. None leaves them
            unchanged, as ByteDance Monolith did for batches.
        cycle_length: Number of files to read at a time, a block of each, round-robin.
        bad: Counts the remaining rows of a damaged row group, and a file that is not Parquet as one, and limits how
            many may be skipped. A failing storage is not damage, and always raises.

    Raises:
        InvalidArgumentError: while reading: a column is missing, or of another type; names file and column.
        DataLossError: while reading: a file is not Parquet, or is damaged.
    """

    def __init__(
        self,
        files: Files | Paths,
        columns: Columns | None = None,
        *,
        block_rows: int = 1 << 14,
        num_labels: int | None = None,
        cycle_length: int = 1,
        bad: BadRecords | None = None,
    ) -> None:
        _pyarrow()
        super().__init__(files, cycle_length=cycle_length)
        self._bad = BadRecords() if bad is None else bad
        self._options = _ReadOptions(
            columns=wanted_columns(columns),
            block_rows=whole_number("block_rows", block_rows, at_least=1),
            num_labels=None if num_labels is None else whole_number("num_labels", num_labels, at_least=1),
        )

    def known_length(self) -> KnownLength:
        """Returns the number of rows from the footers of the files; unknown if one cannot be read."""
        if not isinstance(self.files, FileSet):
            return KnownLength()
        try:
            return KnownLength(rows=sum(self._num_rows(path) for path in self.files.order(self._epoch)))
        except (OpError, OSError):
            return KnownLength()

    def _num_rows(self, path: str) -> int:
        file = self.files.open(path) if "://" in path else _open_local(path)
        try:
            with _named_errors(path):
                return len(_rows_of_part(_pyarrow().read_metadata(file), self.part))
        finally:
            file.close()

    def open_file(self, path: str, place: Any) -> OpenFile[Batch]:
        """Begins to read a file; a place is a row group and how many of its rows were returned.

        A part is consecutive row groups, or a stretch of the rows where there are fewer row groups than parts.
        """
        try:
            start = None if place is None else (int(place["row_group"]), int(place["row"]))
        except (TypeError, KeyError, ValueError) as error:
            text = f"file '{path}': expected row_group and row to resume from, got {place!r}"
            raise InvalidArgumentError(text) from error
        # A local file is read by Arrow itself: through a file of Python, its threads would wait for each other.
        file = self.files.open(path) if "://" in path else _open_local(path)
        try:
            return _OpenParquet(file, path, self._options, start, part=self.part, bad=self._bad)
        except _DamagedError as error:
            file.close()
            self._bad.add(str(error))
            return _LeftOut(place)
        except BaseException:
            file.close()
            raise

    def can_split_files(self) -> bool:
        """Returns True for a fixed list of files: the footer of each has the positions of its row groups."""
        return isinstance(self.files, FileSet)


def _rows_of_part(metadata: Any, part: tuple[int, int]) -> range:
    """Returns the numbers of the rows of a part of a file: complete row groups, if there are enough."""
    index, count = part
    groups = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    if len(groups) < count:
        return range(sum(groups) * index // count, sum(groups) * (index + 1) // count)
    first, last = len(groups) * index // count, len(groups) * (index + 1) // count
    return range(sum(groups[:first]), sum(groups[:last]))


def _place_of_row(metadata: Any, row: int) -> tuple[int, int]:
    """Returns the row group of a row and its number there; after the last group, if there is no such row."""
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group).num_rows
        if row < rows:
            return group, row
        row -= rows
    return metadata.num_row_groups, 0


class _ReadOptions(NamedTuple):
    columns: dict[str, Wanted] | None
    block_rows: int
    num_labels: int | None


class _DamagedError(DataLossError):
    """A file exists, but is damaged."""


class _LeftOut:
    """Placeholder of a file that is not Parquet."""

    def __init__(self, place: Any) -> None:
        self.place = place

    def __next__(self) -> Batch:
        raise StopIteration

    def close(self) -> None:
        pass


class _OpenParquet:
    """One file. Row groups are decoded block by block, so that memory holds a block, not a row group."""

    def __init__(
        self,
        file: Any,
        path: str,
        options: _ReadOptions,
        start: tuple[int, int] | None,
        *,
        part: tuple[int, int],
        bad: BadRecords,
    ) -> None:
        self._file = file
        self._path = path
        self._options = options
        self._bad = bad
        with _named_errors(path):
            self._parquet = _pyarrow().ParquetFile(file, pre_buffer=False, page_checksum_verification=True)
        rows = _rows_of_part(self._parquet.metadata, part)
        self._end = _place_of_row(self._parquet.metadata, rows.stop)
        self._row_group, self._row = _place_of_row(self._parquet.metadata, rows.start) if start is None else start
        schema = self._parquet.schema_arrow
        self._columns, left_out = fitting_columns(schema, options.columns, f"file '{path}'")
        warn_of_left_out(path, left_out, schema)
        self._blocks: Iterator[Any] | None = None

    @property
    def place(self) -> Any:
        return {"row": self._row, "row_group": self._row_group}

    def __next__(self) -> Batch:
        while (self._row_group, self._row) < self._end:
            if self._blocks is None:
                self._blocks = self._begin_row_group()
            try:
                with _named_errors(self._path, f"row group {self._row_group}, row {self._row}: "):
                    block = next(self._blocks, None)
            except _DamagedError as error:
                self._blocks = None
                self._bad.add(str(error), self._end_of_group() - self._row)
                block = None
            except BaseException:
                self._blocks = None  # what has raised is not at its end
                raise
            if block is not None:
                return self._batch_of(block)
            self._row_group, self._row, self._blocks = self._row_group + 1, 0, None
        raise StopIteration

    def close(self) -> None:
        self._blocks = None
        self._parquet.close()
        self._file.close()

    def _begin_row_group(self) -> Iterator[Any]:
        """Yields the blocks of the row group, without the rows that were returned before or are of the next part."""
        to_skip, left = self._row, self._end_of_group() - self._row
        blocks = self._parquet.iter_batches(
            batch_size=self._options.block_rows, row_groups=[self._row_group], columns=list(self._columns)
        )
        for block in blocks:
            skipped = min(to_skip, block.num_rows)
            to_skip -= skipped
            if skipped < block.num_rows:
                rows = block.slice(skipped, left) if skipped or block.num_rows > left else block
                left -= rows.num_rows
                yield rows
            if not left:
                return

    def _end_of_group(self) -> int:
        """Returns the end of the rows of the group that belong to this part."""
        if self._row_group == self._end[0]:
            return self._end[1]
        return int(self._parquet.metadata.row_group(self._row_group).num_rows)

    def _batch_of(self, block: Any) -> Batch:
        arrays = dict(zip(block.schema.names, block.columns, strict=True))
        columns: dict[str, ColumnValues] = {}
        for column, kind in self._columns.items():
            name, place = column, f"file '{self._path}': column {column!r}"
            if self._options.num_labels is not None and is_reserved(column):
                name, values = reserved_column(column, arrays[column], self._options.num_labels, place)
            else:
                values = wanted_values(arrays[column], kind, name=column, place=place)
            if name in columns:
                raise InvalidArgumentError(f"{place}: there is a column {name!r} already; leave one of them out")
            columns[name] = values
        self._row += block.num_rows
        return Batch(columns, num_rows=block.num_rows, texts=text_columns(block.schema, self._columns))


def _open_local(path: str) -> Any:
    try:
        return pa.OSFile(path)
    except FileNotFoundError as error:
        raise NotFoundError(f"file '{path}': there is no such file") from error


@contextmanager
def _named_errors(path: str, place: str = "") -> Iterator[None]:
    """Adds the file name to errors of pyarrow."""
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        # Arrow has OSError for damage, too, but without a number of the system.
        kind = DataLossError if isinstance(error, OSError) and error.errno is not None else _DamagedError
        raise kind(f"file '{path}': {place}no Parquet that can be read: {error}") from error


def _pyarrow() -> Any:
    return pyarrow_module("pyarrow.parquet", what="Parquet files", extra="parquet")
