"""Tables in memory as a dataset of batches: Arrow, pandas, polars, Hugging Face; needs `monolith-torch[arrow]`."""

from __future__ import annotations

import logging
from copy import copy
from typing import TYPE_CHECKING, Any

from monolith.data.batch import Batch
from monolith.data.dataset import Dataset
from monolith.data.pipeline.elements import check_share
from monolith.data.pipeline.stage import IndexedReading, KnownLength, whole_number
from monolith.data.sources.arrow import pa, pyarrow_module
from monolith.data.sources.wanted_columns import batch_of_table, fitting_columns, wanted_columns, warn_of_left_out

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.data.pipeline.stage import Reading
    from monolith.data.sources.wanted_columns import Columns

_LOG = logging.getLogger(__name__)
_BLOCK_ROWS = 1 << 14


class ArrowDataset(Dataset[Batch]):
    """The rows of something that gives Arrow tables by row numbers, in batches of `block_rows` rows.

    Use `from_arrow`, `from_pandas`, `from_polars` or `from_huggingface`, which make it. `arrow_columns` documents how
    types are converted to those of a `Batch`, and the defaults for missing values.

    Args:
        rows: Called with two row numbers, returns the rows from the first to the second as a table.
        num_rows: Number of rows.
        schema: Schema of the tables.
        columns: Names, columns such as ``Ids("user")``, or names with what each must hold, see `ColumnType`. None for
            all columns with a supported type; the others are skipped with a warning.
        block_rows: Rows of a batch.
        shard: Number of this worker and how many there are: it reads a contiguous range of the rows, as long as the
            others'.
    """

    def __init__(
        self,
        rows: Callable[[int, int], pa.Table],
        num_rows: int,
        schema: pa.Schema,
        columns: Columns | None = None,
        *,
        block_rows: int = _BLOCK_ROWS,
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        index, count = shard
        if not 0 <= index < count:
            raise ValueError(f"shard must be (number of this worker, number of workers), got {shard}")
        self._rows = rows
        self._num_rows = num_rows
        self._block_rows = whole_number("block_rows", block_rows, at_least=1)
        self._shard = shard
        self.schema = schema
        self._columns, left_out = fitting_columns(schema, wanted_columns(columns), "table")
        warn_of_left_out("table", left_out, schema)

    def share(self, index: int, count: int) -> ArrowDataset:
        """Returns a stretch of the rows of this dataset."""
        check_share(index, count)
        other = copy(self)
        own, workers = self._shard
        other._shard = (own * count + index, workers * count)  # noqa: SLF001 - a copy of this one
        return other

    @property
    def is_share(self) -> bool:
        """Whether it has only a range of the rows."""
        return self._shard != (0, 1)

    def known_length(self) -> KnownLength:
        """Returns the number of batches and rows."""
        return KnownLength(self._num_blocks, len(self._own_rows()))

    def __repr__(self) -> str:
        return f"ArrowDataset({self._num_rows} rows: {', '.join(self._columns)})"

    @property
    def _num_blocks(self) -> int:
        return -(-len(self._own_rows()) // self._block_rows)

    def _own_rows(self) -> range:
        index, count = self._shard
        return range(self._num_rows * index // count, self._num_rows * (index + 1) // count)

    def read(self, position: bytes | None = None) -> Reading[Batch]:
        """Starts a reading; its position is the number of batches that were returned."""
        return IndexedReading("table", self._block, self._num_blocks, position, share=self._shard)

    def _block(self, number: int) -> Batch:
        rows = self._own_rows()
        begin = rows.start + number * self._block_rows
        end = min(rows.stop, begin + self._block_rows)
        return batch_of_table(self._rows(begin, end), self._columns, "table", num_rows=end - begin)


class _Slices:
    """The rows of a table; not a closure, so that datasets travel to other processes."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __call__(self, begin: int, end: int) -> pa.Table:
        return self._table.slice(begin, end - begin)


class _HuggingFaceRows:
    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset.with_format("arrow")

    def __call__(self, begin: int, end: int) -> pa.Table:
        table: pa.Table = self._dataset[begin:end]
        return table


def from_arrow(
    table: Any, columns: Columns | None = None, *, block_rows: int = _BLOCK_ROWS, shard: tuple[int, int] = (0, 1)
) -> ArrowDataset:
    """Returns the rows of an Arrow table, a record batch, or several of them.

    >>> import pyarrow as pa
    >>> dataset = from_arrow(pa.table({"user": ["ann", None], "age": [31, 42]}))
    >>> next(iter(dataset))
    Batch(2 rows: user, age)

    Args:
        table: A ``pyarrow.Table``, a ``RecordBatch``, a reader of batches (which is read completely), or anything that
            exports an Arrow stream.
        columns: See `ArrowDataset`.
        block_rows: Rows of a batch; `batch` makes others.
        shard: Number of this worker and how many there are.
    """
    pyarrow_module("pyarrow", what="Arrow tables", extra="arrow")
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    elif isinstance(table, pa.RecordBatchReader):
        table = table.read_all()
    elif isinstance(table, list | tuple) and table and all(isinstance(batch, pa.RecordBatch) for batch in table):
        table = pa.Table.from_batches(table)
    elif not isinstance(table, pa.Table):
        if not hasattr(table, "__arrow_c_stream__"):
            raise TypeError(
                f"from_arrow: expected a table or record batches of pyarrow, got a {type(table).__name__}; see also"
                " from_pandas, from_polars and from_huggingface"
            )
        table = pa.table(table)
    return ArrowDataset(_Slices(table), table.num_rows, table.schema, columns, block_rows=block_rows, shard=shard)


def from_pandas(
    frame: Any, columns: Columns | None = None, *, block_rows: int = _BLOCK_ROWS, shard: tuple[int, int] = (0, 1)
) -> ArrowDataset:
    """Returns the rows of a pandas ``DataFrame``, without its index; a column of mixed values is read as text.

    Args: as in `from_arrow`.
    """
    pyarrow_module("pyarrow", what="from_pandas", extra="pandas")
    if not hasattr(frame, "iloc") or not hasattr(frame, "columns"):
        raise TypeError(f"from_pandas: expected a pandas.DataFrame, got a {type(frame).__name__}")
    arrays = {str(name): _pandas_array(str(name), frame.iloc[:, at]) for at, name in enumerate(frame.columns)}
    if len(arrays) < len(frame.columns):
        raise ValueError("from_pandas: columns must have names of their own, got some twice")
    return from_arrow(pa.table(arrays), columns, block_rows=block_rows, shard=shard)


def _pandas_array(name: str, series: Any) -> pa.Array:
    try:
        return pa.array(series, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        _LOG.warning("column %r is read as text, since its values are of several types: %s", name, error)
    texts = series.map(str, na_action="ignore").astype(object)
    return pa.array(texts.where(texts.notna(), None), pa.string(), from_pandas=True)


def from_polars(
    frame: Any, columns: Columns | None = None, *, block_rows: int = _BLOCK_ROWS, shard: tuple[int, int] = (0, 1)
) -> ArrowDataset:
    """Returns the rows of a polars ``DataFrame``, or of a ``LazyFrame``, which is collected.

    Args: as in `from_arrow`.
    """
    pyarrow_module("pyarrow", what="from_polars", extra="polars")
    if hasattr(frame, "collect") and not hasattr(frame, "to_arrow"):
        frame = frame.collect()
    if not hasattr(frame, "to_arrow"):
        raise TypeError(f"from_polars: expected a polars.DataFrame or LazyFrame, got a {type(frame).__name__}")
    return from_arrow(frame.to_arrow(), columns, block_rows=block_rows, shard=shard)


def from_huggingface(
    dataset: Any, columns: Columns | None = None, *, block_rows: int = _BLOCK_ROWS, shard: tuple[int, int] = (0, 1)
) -> ArrowDataset:
    """Returns the rows of a ``datasets.Dataset``, which stays on disk, in the order that it is in.

    Args: as in `from_arrow`.

    Raises:
        TypeError: a stream, of which rows cannot be had by their number, or a dictionary of splits.
    """
    pyarrow_module("pyarrow", what="from_huggingface", extra="huggingface")
    kind = type(dataset).__name__
    if isinstance(dataset, dict):
        splits = ", ".join(map(repr, dataset))
        got = f"a {kind} of {splits}; choose one, as dataset['train']"
        raise TypeError(f"from_huggingface: expected one split, got {got}")
    if not all(hasattr(dataset, name) for name in ("with_format", "__getitem__", "__len__")) or _is_stream(dataset):
        raise TypeError(
            f"from_huggingface: expected a datasets.Dataset, got a {kind}; a stream has no positions to resume from:"
            " load it without streaming=True, or write it by to_parquet and read that by ParquetDataset"
        )
    rows = _HuggingFaceRows(dataset)
    schema = dataset.features.arrow_schema
    return ArrowDataset(rows, len(dataset), schema, columns, block_rows=block_rows, shard=shard)


def _is_stream(dataset: Any) -> bool:
    """Returns whether it has no rows by their number: such a one is an iterable dataset of torch."""
    return hasattr(dataset, "iter") and not hasattr(dataset, "select")
