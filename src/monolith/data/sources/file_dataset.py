"""Round-robin reading of files, shared by the datasets of all file formats; and files of records as a dataset."""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from monolith.data.dataset import Dataset
from monolith.data.pipeline.elements import check_share
from monolith.data.pipeline.stage import Reading, whole_number
from monolith.data.position import SavedPosition, encode_position
from monolith.data.records.bad_records import BadRecords
from monolith.data.records.compression import Compression
from monolith.data.records.framing import Framing, SampleFormat
from monolith.data.records.reader import MAX_RECORD_BYTES, RecordPosition, RecordReader
from monolith.data.sources.file_set import Files, FileSet
from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    from monolith.data.dataset import WorkerShare
    from monolith.data.records.records import Records
    from monolith.data.sources.file_patterns import Paths
    from monolith.data.sources.file_set import FileFeed, FilePart


R = TypeVar("R")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class OpenFile(Protocol[T_co]):
    """One file that is being read."""

    def __next__(self) -> T_co:
        """Returns the next block of the file; raises StopIteration at its end."""

    @property
    def place(self) -> Any:
        """Where to resume after the block that was returned last, as JSON."""

    def close(self) -> None:
        """Closes the file."""


class FileDataset(Dataset[T]):
    """Blocks of files, round-robin over `cycle_length` open files; a file that ends is replaced by the next.

    Args:
        files: Paths or patterns, or a `FileSet`, which also sets share and order, or `QueuedFiles`, which workers
            share.
        cycle_length: Number of files to read at a time.
    """

    def __init__(self, files: Files | Paths, *, cycle_length: int = 1) -> None:
        self.files: Files = files if isinstance(files, Files) else FileSet(files)
        self._cycle_length = whole_number("cycle_length", cycle_length, at_least=1)
        self._epoch = 0
        self.part = (0, 1)
        """Which part of each file is read, and how many parts a file has."""

    def for_epoch(self, epoch: int) -> FileDataset[T]:
        """Returns the same files, in the order of this epoch if they are shuffled."""
        other = copy(self)
        other._epoch = epoch  # noqa: SLF001 - a copy of this one
        return other

    def share(self, index: int, count: int) -> Dataset[T]:
        """Files of its own for each worker where there are enough, otherwise a part of each file, or of its blocks."""
        check_share(index, count)
        files = self.files.share(index, count)
        if files is None and not self.can_split_files():
            return super().share(index, count)
        other = copy(self)
        if files is not None:
            other.files = files
        else:
            own, parts = self.part
            other.part = (own * count + index, parts * count)
        return other

    @property
    def is_share(self) -> bool:
        """Whether its files, or parts of them, are those of one worker."""
        return self.part != (0, 1) or self.files.is_share

    def for_worker(self, worker: WorkerShare) -> Dataset[T]:
        """Files out of the queue that workers share, where there is one; otherwise a share."""
        if worker.queue is None or self.is_share or not isinstance(self.files, FileSet):
            return super().for_worker(worker)
        other = copy(self)
        other.files = worker.queue(self.files)
        return other

    def can_split_files(self) -> bool:
        """Returns whether `open_file` reads the `part` of a file alone, whatever its files are."""
        return False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.files!r})"

    def read(self, position: bytes | None = None) -> Reading[T]:
        """Starts a reading; its position is how far each open file was read, and which is the next to open."""
        reading = _FilesReading(self.open_file, self.files.feed(self._epoch), self._cycle_length, self.part)
        if position is not None:
            reading.go_to(position)
        return reading

    @abstractmethod
    def open_file(self, path: str, place: Any) -> OpenFile[T]:
        """Begins to read a file, at the start of its `part` if `place` is None."""


class _FilesReading(Reading[T], Generic[T]):
    """A pass over files. Slots hold files: number in the feed, place to resume from, the file once it is open."""

    def __init__(
        self, open_file: Callable[[str, Any], OpenFile[T]], feed: FileFeed, cycle_length: int, part: tuple[int, int]
    ) -> None:
        self._open_file = open_file
        self._feed = feed
        self._cycle_length = cycle_length
        self._part = part
        self._slots: list[_Slot[T]] = []
        self._next_file = 0
        self._turn = 0
        self._has_more = True

    @property
    def position(self) -> bytes:
        fields = {
            **self._feed.fields,
            "cycle_length": self._cycle_length,
            "next_file": self._next_file,
            "open": [[slot.number, slot.place] for slot in self._slots],
            "turn": self._turn,
        }
        if self._part != (0, 1):
            fields["part"] = list(self._part)
        return encode_position(self._feed.kind, fields)

    def go_to(self, position: bytes) -> None:
        """Restores a saved position."""
        saved = SavedPosition(position, self._feed.kind)
        saved.require_same(**self._feed.fields, cycle_length=self._cycle_length).require_share("part", self._part)
        self._next_file, self._turn = saved.number("next_file"), saved.number("turn")
        self._feed.require_taken(self._next_file)
        try:
            self._slots = [self._again(int(number), place) for number, place in saved.values("open")]
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"position for a dataset of kind {self._feed.kind!r}: {error}") from error

    def __next__(self) -> T:
        return self._from_next_slot(lambda slot: slot.read(self._open_file))

    def skip(self) -> None:
        self._from_next_slot(lambda slot: slot.skip(self._open_file))

    def _from_next_slot(self, take: Callable[[_Slot[T]], R]) -> R:
        while True:
            while len(self._slots) < self._cycle_length and (slot := self._take_file()) is not None:
                self._slots.append(slot)
            if not self._slots:
                raise StopIteration
            self._turn %= len(self._slots)  # the last of the cycle may have ended
            slot = self._slots[self._turn]
            try:
                block = take(slot)
            except StopIteration:
                self._end(slot)
                continue
            self._turn = (self._turn + 1) % len(self._slots)
            return block

    def close(self) -> None:
        slots, self._slots, self._has_more = self._slots, [], False
        for slot in slots:
            slot.close()

    def _take_file(self) -> _Slot[T] | None:
        part = self._feed.take(self._next_file) if self._has_more else None
        if part is None:
            self._has_more = False  # what comes to a queue later is not for a reading that has ended
            return None
        self._next_file += 1
        return _Slot(self._next_file - 1, part)

    def _again(self, number: int, place: Any) -> _Slot[T]:
        part = self._feed.take(number) if 0 <= number < self._next_file else None
        if part is None:
            raise ValueError(f"it has file {number} open, and took {self._next_file} files")
        return _Slot(number, part, place)

    def _end(self, slot: _Slot[T]) -> None:
        slot.close()
        following = self._take_file()
        if following is not None:
            self._slots[self._turn] = following
        else:
            del self._slots[self._turn]


class _Slot(Generic[T]):
    """A file of the cycle, opened when its turn comes first."""

    def __init__(self, number: int, part: FilePart, place: Any = None) -> None:
        self.number = number
        self._part = part
        self._start = place
        self._file: OpenFile[T] | None = None

    @property
    def place(self) -> Any:
        """Where to resume after the block that was read last; None: at the start of the part."""
        return self._start if self._file is None else self._file.place

    def read(self, open_file: Callable[[str, Any], OpenFile[T]]) -> T:
        return next(self._opened(open_file))

    def skip(self, open_file: Callable[[str, Any], OpenFile[T]]) -> None:
        file = self._opened(open_file)
        getattr(file, "skip", file.__next__)()

    def _opened(self, open_file: Callable[[str, Any], OpenFile[T]]) -> OpenFile[T]:
        if self._file is None:
            self._file = open_file(self._part.path, self._part.place if self._start is None else self._start)
        return self._file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


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
            text = f"file '{path}': expected offset and records to resume from, got {place!r}"
            raise InvalidArgumentError(text) from error
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
