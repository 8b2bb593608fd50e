"""Files of records, of every framing, as a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith.data.records.bad_records import BadRecords
from monolith.data.records.compression import Compression
from monolith.data.records.framing import Framing, SampleFormat
from monolith.data.records.reader import MAX_RECORD_BYTES, RecordPosition, RecordReader
from monolith.data.sources.file_dataset import FileDataset
from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from typing import BinaryIO

    from monolith.data.file_queue.feed import Files
    from monolith.data.records.records import Records
    from monolith.data.sources.file_patterns import Paths


class RecordDataset(FileDataset["Records"]):
    """The records of files in blocks of about four mebibytes; `batch` cuts them, `parse` makes batches of them.

    Args:
        files: Paths or patterns, or a `FileSet` or `QueuedFiles`.
        framing: Framing of each record, such as ``"tfrecord"``.
        compression: Compression of the files.
        sample: What the records hold. The start of each file is checked to be that under this framing.
        cycle_length: Number of files to read at a time, a block of each, round-robin.
        max_record_bytes: Longer records are bad.
        bad: Counts bad records, and limits how many may be skipped.
    """

    def __init__(
        self,
        files: Files | Paths,
        framing: Framing | str = Framing.PLAIN,
        *,
        compression: Compression | str = Compression.FROM_NAME,
        sample: SampleFormat | str = SampleFormat.EXAMPLE,
        cycle_length: int = 1,
        max_record_bytes: int = MAX_RECORD_BYTES,
        bad: BadRecords | None = None,
    ) -> None:
        super().__init__(files, cycle_length=cycle_length)
        self._framing = Framing.of(framing)
        self._options: dict[str, Any] = {
            "compression": Compression.of(compression),
            "sample": SampleFormat.of(sample),
            "max_record_bytes": max_record_bytes,
            "bad": BadRecords() if bad is None else bad,
        }

    def open_file(self, path: str, place: Any) -> _OpenRecords:
        """Begins to read the records of a file; a place is an offset in the uncompressed file and a count."""
        try:
            start = None if place is None else RecordPosition.from_dict(place)
        except TypeError as error:
            raise InvalidArgumentError(
                f"file '{path}': expected offset and records to resume from, got {place!r}"
            ) from error
        file = self.files.open(path)
        try:
            return _OpenRecords(file, RecordReader(file, self._framing, start=start, **self._options))
        except BaseException:
            file.close()
            raise


class _OpenRecords:
    def __init__(self, file: BinaryIO, reader: RecordReader) -> None:
        self._file = file
        self._reader = reader
        self._blocks = reader.blocks()

    def __next__(self) -> Records:
        try:
            return next(self._blocks)
        except StopIteration:
            raise
        except BaseException:
            # A generator that has raised is at its end, and the file would look as if it were, too.
            self._blocks = self._reader.blocks()
            raise

    @property
    def place(self) -> Any:
        return self._reader.position.to_dict()

    def close(self) -> None:
        self._file.close()
