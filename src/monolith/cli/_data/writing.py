"""Outputs of ``monolith data``: a file comes into being whole, or not at all."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from monolith.cli._data.parquet_rows import pyarrow, table_of, temporary_beside
from monolith.cli._data.samples import LABEL, LINE_ID, WEIGHT
from monolith.data.protos.example_pb2 import Example, ExampleBatch
from monolith.data.record_writer import RecordWriter
from monolith.errors import AlreadyExistsError, InvalidArgumentError

if TYPE_CHECKING:
    import argparse
    from types import TracebackType

FORMATS = ("example", "example_batch", "parquet")


class Sink(ABC):
    """Takes examples one after another; what is not closed in peace leaves no file."""

    @abstractmethod
    def write(self, example: Example) -> None:
        """Adds an example."""

    @abstractmethod
    def close(self) -> None:
        """Finishes the file and gives it its name."""

    @abstractmethod
    def abort(self) -> None:
        """Removes what was written so far."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
            return
        try:
            self.close()
        except BaseException:
            self.abort()
            raise


def open_sink(args: argparse.Namespace) -> Sink:
    """The output that the arguments name: `out`, `to`, `out_framing`, `out_compression`, `batch_size`, `look_ahead`."""
    check_output(args)
    if args.batch_size < 1 or args.look_ahead < 1:
        name, value = ("--batch-size", args.batch_size) if args.batch_size < 1 else ("--look-ahead", args.look_ahead)
        raise InvalidArgumentError(f"{name} must be >= 1, got {value}")
    if args.to == "parquet":
        return ParquetSink(args.out, look_ahead=args.look_ahead)
    writer = RecordWriter(args.out, args.out_framing, compression=args.out_compression)
    return ExampleSink(writer) if args.to == "example" else ExampleBatchSink(writer, rows=args.batch_size)


def check_output(args: argparse.Namespace) -> None:
    """Refuses to write over a file that is there, unless that is wanted.

    Raises:
        AlreadyExistsError: it is there.
    """
    if not args.force and "://" not in args.out and Path(args.out).exists():
        raise AlreadyExistsError(f"file '{args.out}': it exists; --force writes over it")
    if "://" not in args.out and not Path(args.out).absolute().parent.is_dir():
        raise InvalidArgumentError(f"file '{args.out}': there is no folder '{Path(args.out).parent}'")


class ExampleSink(Sink):
    """A record for each example."""

    def __init__(self, writer: RecordWriter) -> None:
        self._writer = writer

    def write(self, example: Example) -> None:
        """Adds an example."""
        self._writer.write(example.SerializeToString())

    def close(self) -> None:
        """Finishes the file and gives it its name."""
        self._writer.close()

    def abort(self) -> None:
        """Removes what was written so far."""
        self._writer.abort()


class ExampleBatchSink(Sink):
    """A record for each `rows` examples, column by column."""

    def __init__(self, writer: RecordWriter, *, rows: int) -> None:
        self._writer = writer
        self._rows = rows
        self._waiting: list[Example] = []

    def write(self, example: Example) -> None:
        """Adds an example."""
        self._waiting.append(example)
        if len(self._waiting) == self._rows:
            self._flush()

    def close(self) -> None:
        """Finishes the file and gives it its name."""
        self._flush()
        self._writer.close()

    def abort(self) -> None:
        """Removes what was written so far."""
        self._writer.abort()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write(batch_of(self._waiting).SerializeToString())
            self._waiting.clear()


def batch_of(examples: list[Example]) -> ExampleBatch:
    """Rows as columns, in order of their first appearance; typed fields as the columns that stand for them."""
    batch = ExampleBatch(batch_size=len(examples), data_source_key=examples[0].data_source_key)
    columns: dict[str, Any] = {}
    for row, example in enumerate(examples):
        for name, feature_id, feature in _columns_of(example):
            if name not in columns:
                columns[name] = batch.named_feature_list.add(name=name, id=feature_id)
            column = columns[name].feature
            while len(column) <= row:
                column.add()
            column[row].CopyFrom(feature)
    for column in columns.values():
        while len(column.feature) < len(examples):
            column.feature.add()
    return batch


def _columns_of(example: Example) -> list[tuple[str, int, Any]]:
    columns: list[tuple[str, int, Any]] = [(each.name, each.id, each.feature) for each in example.named_feature]
    extra = Example()
    if example.label:
        extra.named_feature.add(name=LABEL).feature.float_list.value.extend(example.label)
    if example.HasField("line_id"):
        extra.named_feature.add(name=LINE_ID).feature.bytes_list.value.append(example.line_id.SerializeToString())
    if example.instance_weight:
        extra.named_feature.add(name=WEIGHT).feature.float_list.value.append(example.instance_weight)
    return columns + [(each.name, 0, each.feature) for each in extra.named_feature]


class ParquetSink(Sink):
    """A row for each example; the first `look_ahead` of them decide about the columns."""

    def __init__(self, path: str, *, look_ahead: int = 10_000) -> None:
        if "://" in path:
            raise InvalidArgumentError(f"file '{path}': Parquet is written to local files only")
        self._pyarrow = pyarrow()
        self._path = path
        self._temporary = temporary_beside(path, secrets.token_hex(4))
        self._look_ahead = look_ahead
        self._waiting: list[Example] = []
        self._writer: Any = None
        self._schema: Any = None

    def write(self, example: Example) -> None:
        """Adds an example."""
        self._waiting.append(example)
        if len(self._waiting) == self._look_ahead:
            self._flush()

    def close(self) -> None:
        """Finishes the file and gives it its name."""
        if self._waiting or self._writer is None:
            self._flush()
        self._writer.close()
        self._temporary.replace(self._path)

    def abort(self) -> None:
        """Removes what was written so far."""
        if self._writer is not None:
            self._writer.close()
        self._temporary.unlink(missing_ok=True)

    def _flush(self) -> None:
        table = table_of(self._waiting, self._schema)
        if self._writer is None:
            self._schema = table.schema
            self._writer = self._pyarrow.parquet.ParquetWriter(self._temporary, self._schema)
        self._writer.write_table(table)
        self._waiting.clear()
