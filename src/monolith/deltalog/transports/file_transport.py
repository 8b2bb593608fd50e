"""A log in a local folder, or in a file system that all readers and writers mount.

No lock is held, so that a suspended process blocks no other. A writer claims the part by creating the first segment of
the next generation, which succeeds for one writer only; then it reads the last number of the previous generation. The
previous writer checks for a newer generation after every append, and a reader after every read: the new writer has seen
the records written before its segment was created, and later ones do not count.
"""

from __future__ import annotations

import abc
import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from monolith.background import Backoff
from monolith.deltalog.increment import require_part
from monolith.deltalog.transport import Claim, Extent, Transport
from monolith.deltalog.transports.file_lineage import GenerationChain
from monolith.deltalog.transports.file_segments import (
    LastRecord,
    SegmentFile,
    first_head,
    is_damaged_at_start,
    last_record,
    segments_in,
)
from monolith.deltalog.transports.file_tail import FileTail
from monolith.errors import AbortedError, FailedPreconditionError, NotFoundError, UnavailableError
from monolith.files import LocalStorage, named_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.deltalog.increment import RecordHeader
    from monolith.files import Storage

MARKER = "delta_log.json"
"""File that identifies a folder as a log."""
MARKER_TEXT = b'{"format": "monolith-delta-log", "version": 1}\n'
_DOCUMENTS = "bases"
_PARTS = "parts"
SEGMENT_BYTES = 64 << 20


class FolderTransport(Transport):
    """The marker and the documents of a log below one folder of a file system."""

    _storage: Storage

    @abc.abstractmethod
    def _make_log(self) -> None:
        """Creates the folder and its marker, durably; refuses a folder that holds other things."""

    def _require_log(self) -> None:
        if not self._storage.exists(MARKER):
            raise NotFoundError(
                f"'{self.place}': there is no delta log ({MARKER} is missing); the first writer makes it"
            )

    def put_document(self, name: str, text: bytes) -> None:
        """Writes a file, atomically replacing a previous one."""
        self._make_log()
        documents = self._storage.below(_DOCUMENTS)
        documents.make()
        documents.replace(name, text)

    def documents(self) -> dict[str, bytes]:
        """Returns every JSON file; one that vanishes meanwhile was removed."""
        folder = self._storage.below(_DOCUMENTS)
        documents: dict[str, bytes] = {}
        for name in folder.names():
            if name.endswith(".json"):
                with contextlib.suppress(NotFoundError):
                    documents[name] = folder.read(name)
        return documents

    def remove_document(self, name: str) -> None:
        """Removes the file."""
        self._storage.remove(f"{_DOCUMENTS}/{name}")


class FileTransport(FolderTransport):
    """A transport over segment files.

    Args:
        folder: Folder of the log; created by the first writer.
        segment_bytes: Size at which a new segment is started; trimming removes entire segments.
    """

    joins_records = True

    def __init__(self, folder: str | os.PathLike[str], *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folder = Path(folder).absolute()
        self.place = str(self._folder)
        self._storage = LocalStorage(self._folder)
        self._segment_bytes = segment_bytes
        self._last: dict[str, LastRecord] = {}
        """Part -> its last record as of the last `extent`; any thread may replace it by a newer one."""

    def parts(self) -> list[str]:
        """Returns the names of the folders that have records, including damaged ones."""
        self._require_log()
        with named_errors(self.place, "listed"):
            parts = self._folder / _PARTS
            names = [path.name for path in parts.iterdir()] if parts.is_dir() else []
        return sorted(name for name in names if self.extent(name) is not None or self._is_damaged(name))

    def extent(self, part: str) -> Extent | None:
        """Returns what a part has, from the heads of its segments and the records of the last one."""
        folder = self._part(part)
        segments = segments_in(folder)
        with named_errors(str(folder), "read"):
            last = last_record(folder, segments, self._last.get(part))
        if last is None:
            return None
        self._last[part] = last
        heads = (head for segment in segments if (head := first_head(folder, segment)) is not None)
        first = next((head.number for head in heads), last.head.number)
        return Extent(first, last.head.number + 1, last.segment.generation, last.head.writer)

    def open(self, part: str, opening: Callable[[Claim], bytes], *, after_writer: int | None = None) -> FileAppender:
        """Creates the first segment of a generation, then reads where the previous generation ended."""
        require_part(part)
        self._make_log()
        folder = self._part(part)
        LocalStorage(folder).make()
        contended = Backoff(0.001, 0.064, jitter="full")
        while True:
            extent = self.extent(part)
            self._require_last(part, extent, after_writer)
            try:
                return self._opened(part, folder, opening, after_writer)
            except ContendedError:
                pass  # another writer opens it concurrently; retry, so that one of the two is last
            except AbortedError:
                if after_writer is not None:
                    raise
            time.sleep(contended.next())

    def tail(self, part: str, number: int | None) -> FileTail:
        """Returns a reader of the segments from a number on."""
        return FileTail(self._part(part), number)

    def trim(self, part: str, below: int) -> int:
        """Removes segments that hold only lower numbers; returns the first number that is left."""
        folder = self._part(part)
        lineage = GenerationChain(folder)
        segments = segments_in(folder)
        for place, segment in enumerate(segments[:-1], 1):
            # A damaged segment has no head.
            heads = (first_head(folder, each) for each in segments[place:] if each.generation == segment.generation)
            head = next((head for head in heads if head is not None), None)
            end = lineage.end_of(segment.generation) if head is None else head.number
            if end is None or end > below:
                break
            with named_errors(str(folder / segment.name), "removed"):
                (folder / segment.name).unlink(missing_ok=True)
        extent = self.extent(part)
        return 0 if extent is None else extent.first

    def withdraw(self, part: str, generations: range | None = None) -> None:
        """Removes the records of some generations, unless there is a newer one; None: of all.

        A writer takes back its part in this way: a previous writer may continue if its generations remain.
        """
        folder = self._part(part)
        segments = segments_in(folder)
        if generations is not None:
            newer = [segment for segment in segments if segment.generation >= generations.stop]
            if any(first_head(folder, segment) is not None for segment in newer):
                return
        for segment in segments:
            if generations is None or segment.generation in generations:
                with named_errors(str(folder / segment.name), "removed"):
                    (folder / segment.name).unlink(missing_ok=True)
        if segments:
            LocalStorage(folder).sync()

    # Internals

    def _is_damaged(self, part: str) -> bool:
        """Returns whether the first record of a part is unreadable."""
        folder = self._part(part)
        return any(is_damaged_at_start(folder, segment) for segment in segments_in(folder))

    def _part(self, part: str) -> Path:
        require_part(part)
        return self._folder / _PARTS / part

    def _make_log(self) -> None:
        with named_errors(self.place, "made"):
            # A log that another writer is creating holds only the marker.
            others = [name for name in self._storage.names() if not name.lstrip(".").startswith(MARKER)]
            has_marker = self._storage.exists(MARKER)
            if others and not has_marker:
                raise FailedPreconditionError(
                    f"'{self._folder}': it holds other things than a delta log; give another folder"
                )
            self._storage.make()
            if not has_marker:
                self._storage.replace(MARKER, MARKER_TEXT)

    def _opened(
        self, part: str, folder: Path, opening: Callable[[Claim], bytes], after_writer: int | None
    ) -> FileAppender:
        segment = SegmentFile(self._claimed(folder), 0)
        path = folder / segment.name
        try:
            with named_errors(str(folder), "read"):
                record = last_record(folder, [other for other in segments_in(folder) if other < segment])
            last = None if record is None else record.head
            self._require_last(part, last, after_writer)
            follows, number = (0, 0) if last is None else (last.generation, last.number + 1)
            claim = Claim(segment.generation, number, follows)
            appender = FileAppender(folder, part, segment, self._segment_bytes)
            try:
                appender.append(claim.number, opening(claim))
            except BaseException:
                appender.close()
                raise
        except BaseException:
            # Readers must not wait for an opening that never comes. If the opening was written after all, the segment
            # stays.
            if first_head(folder, segment) is None:
                with contextlib.suppress(OSError):
                    path.unlink()
            raise
        return appender

    def _require_last(self, part: str, last: RecordHeader | Extent | None, writer: int | None) -> None:
        if writer is not None and (last is None or last.writer != writer):
            raise replaced(self.place, part, -1 if last is None else last.generation)

    def _claimed(self, folder: Path) -> int:
        """Claims the next generation by creating its first segment exclusively; returns it."""
        while True:
            highest = max((segment.generation for segment in segments_in(folder)), default=0)
            path = folder / SegmentFile(highest + 1, 0).name
            with named_errors(str(path), "made"):
                try:
                    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
                except FileExistsError:
                    continue
            LocalStorage(folder).sync()
            return highest + 1


class FileAppender:
    """Writer of the segments of one generation."""

    def __init__(self, folder: Path, part: str, segment: SegmentFile, segment_bytes: int) -> None:
        self._folder = folder
        self._part = part
        self._segment = segment
        self._segment_bytes = segment_bytes
        self._offset = 0
        self._descriptor: int | None = os.open(folder / segment.name, os.O_WRONLY)

    def append(self, number: int, record: bytes) -> None:  # noqa: ARG002 - a record contains its number
        """Writes the record, syncs it, and verifies that this writer still owns the part."""
        path = self._folder / self._segment.name
        with named_errors(str(path), "written"):
            if self._offset >= self._segment_bytes:
                self._roll()
            if self._descriptor is None:
                raise FailedPreconditionError(f"'{path}': it was closed")
            view = memoryview(record)
            while view:
                written = os.pwrite(self._descriptor, view, self._offset)
                self._offset += written
                view = view[written:]
            os.fdatasync(self._descriptor)
        newer = [segment for segment in segments_in(self._folder) if segment.generation > self._segment.generation]
        if newer:
            if all(first_head(self._folder, segment) is None for segment in newer):
                raise ContendedError(f"'{self._folder}': another writer is opening the part; try again")
            raise replaced(str(self._folder.parent.parent), self._part, newer[-1].generation)

    def close(self) -> None:
        """Closes the file. Idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _roll(self) -> None:
        following = SegmentFile(self._segment.generation, self._segment.place + 1)
        descriptor = os.open(self._folder / following.name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        self.close()
        self._descriptor, self._segment, self._offset = descriptor, following, 0
        LocalStorage(self._folder).sync()


class ContendedError(UnavailableError):
    """Another writer has created a segment and not yet written its opening."""


def replaced(place: str, part: str, newest: int) -> AbortedError:
    """Returns the error for a writer that has lost its part."""
    return AbortedError(
        f"delta log '{place}', part {part!r}: another writer has the part now, with generation {newest}; this one was"
        " replaced and must end"
    )
