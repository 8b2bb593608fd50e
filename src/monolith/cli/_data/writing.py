"""Outputs of ``monolith data``: files are written atomically."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Self

from monolith.cli._data.table_files import pyarrow, table_of
from monolith.data import example_batch_of, instance_of_example, tf_example_of_example
from monolith.data.records import Compression, RecordWriter
from monolith.errors import AlreadyExistsError, InvalidArgumentError
from monolith.files import begin_file, named_errors, refuse_special_file

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from types import TracebackType

    from google.protobuf.message import Message

    from monolith.data.protos.example_pb2 import Example

FORMATS = ("example", "example_batch", "instance", "tf_example", "parquet")
_FORMAT_OF_ENDING = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".tfrecord": "example",
    ".tfrecords": "example",
    ".records": "example",
    "": "example",
}


def finish_output(args: argparse.Namespace) -> None:
    """Chooses the format by the name of the file, if it was not given."""
    if args.to is not None:
        return
    path = PurePosixPath(args.out)
    if Compression.FROM_NAME.resolve(args.out) is not Compression.NONE:
        path = path.with_suffix("")
    # A dot in front of digits belongs to a name, as in part.0007.
    ending = "" if path.suffix[1:].isdigit() else path.suffix.lower()
    if ending not in _FORMAT_OF_ENDING:
        known = ", ".join(f"{extension} ({name})" for extension, name in _FORMAT_OF_ENDING.items() if extension)
        raise InvalidArgumentError(
            f"file '{args.out}': no format to write has the extension '{ending}'; use one of {known}, or"
            f" give --to {{{','.join(FORMATS)}}}"
        )
    args.to = _FORMAT_OF_ENDING[ending]


class Sink(ABC):
    """Takes examples one after another; what is not closed in peace leaves no file."""

    @abstractmethod
    def write(self, example: Example, place: str = "") -> None:
        """Adds an example; its place is for messages."""

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
    """Returns the output that the arguments of `add_output` name."""
    check_output(args)
    if args.batch_size < 1 or args.look_ahead < 1:
        name, value = ("--batch-size", args.batch_size) if args.batch_size < 1 else ("--look-ahead", args.look_ahead)
        raise InvalidArgumentError(f"{name} must be >= 1, got {value}")
    if args.to == "parquet":
        return ParquetSink(args.out, look_ahead=args.look_ahead, drop=args.drop_unfit)
    writer = RecordWriter(args.out, args.out_framing, compression=args.out_compression)
    if args.to == "example_batch":
        return ExampleBatchSink(writer, rows=args.batch_size)
    return SampleSink(writer, _MESSAGES[args.to], drop=args.drop_unfit)


def check_output(args: argparse.Namespace) -> None:
    """Refuses to overwrite an existing file, unless requested, and paths that cannot be a file."""
    if "://" in args.out:
        return
    path = Path(args.out)
    if path.is_dir() or args.out.endswith("/"):
        raise InvalidArgumentError(f"file '{args.out}': it is a folder; give a file in it")
    refuse_special_file(args.out)
    if not args.force and path.exists():
        raise AlreadyExistsError(f"file '{args.out}': it exists; --force writes over it")
    if not path.absolute().parent.is_dir():
        raise InvalidArgumentError(f"file '{args.out}': there is no folder '{path.parent}'")


def _as_it_is(example: Example, *, drop_what_does_not_fit: bool) -> Example:  # noqa: ARG001 - everything fits
    return example


_MESSAGES: dict[str, Callable[..., Message]] = {
    "example": _as_it_is,
    "instance": instance_of_example,
    "tf_example": tf_example_of_example,
}
"""What makes the message of a record out of an Example."""


class RecordSink(Sink):
    """Writes records to a file."""

    def __init__(self, writer: RecordWriter) -> None:
        self._writer = writer

    def close(self) -> None:
        """Finishes the file and gives it its name."""
        self._writer.close()

    def abort(self) -> None:
        """Removes what was written so far."""
        self._writer.abort()


class SampleSink(RecordSink):
    """A record for each example, which a function makes the message of."""

    def __init__(self, writer: RecordWriter, message_of: Callable[..., Message], *, drop: bool) -> None:
        super().__init__(writer)
        self._message_of = message_of
        self._drop = drop

    def write(self, example: Example, place: str = "") -> None:
        """Adds an example; its place is for messages."""
        try:
            message = self._message_of(example, drop_what_does_not_fit=self._drop)
        except ValueError as error:
            raise InvalidArgumentError(f"{place}: {error}; --drop-unfit skips what has no place") from error
        self._writer.write(message.SerializeToString(deterministic=True))


class ExampleBatchSink(RecordSink):
    """A record for each `rows` examples, column by column; fewer where another data source begins."""

    def __init__(self, writer: RecordWriter, *, rows: int) -> None:
        super().__init__(writer)
        self._rows = rows
        self._waiting: list[Example] = []

    def write(self, example: Example, place: str = "") -> None:  # noqa: ARG002 - rows are written in blocks
        """Adds an example."""
        if self._waiting and self._waiting[0].data_source_key != example.data_source_key:
            self._flush()
        self._waiting.append(example)
        if len(self._waiting) == self._rows:
            self._flush()

    def close(self) -> None:
        """Finishes the file and gives it its name."""
        self._flush()
        super().close()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write(example_batch_of(self._waiting).SerializeToString())
            self._waiting.clear()


class ParquetSink(Sink):
    """A row for each example; the first `look_ahead` of them decide about the columns."""

    def __init__(self, path: str, *, look_ahead: int = 10_000, drop: bool = False) -> None:
        if "://" in path:
            raise InvalidArgumentError(f"file '{path}': Parquet is written to local files only")
        self._pyarrow = pyarrow()
        self._path = path
        self._temporary = begin_file(path)
        self._look_ahead = look_ahead
        self._drop = drop
        self._waiting: list[Example] = []
        self._writer: Any = None
        self._schema: Any = None

    def write(self, example: Example, place: str = "") -> None:  # noqa: ARG002 - rows are written in blocks
        """Adds an example."""
        self._waiting.append(example)
        if len(self._waiting) == self._look_ahead:
            self._flush()

    def close(self) -> None:
        """Finishes the file and gives it its name."""
        if self._waiting or self._writer is None:
            self._flush()
        self._writer.close()
        with named_errors(self._path, "written"):
            self._temporary.commit()

    def abort(self) -> None:
        """Removes what was written so far."""
        try:
            if self._writer is not None:
                self._writer.close()
        finally:
            self._temporary.discard()

    def write_table(self, table: Any) -> None:
        """Adds rows as they are, instead of examples."""
        if self._writer is None:
            self._schema = table.schema
            self._writer = self._pyarrow.parquet.ParquetWriter(self._temporary.path, self._schema)
        self._writer.write_table(table)

    def _flush(self) -> None:
        self.write_table(table_of(self._waiting, self._schema, drop=self._drop))
        self._waiting.clear()
