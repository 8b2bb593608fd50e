"""A log in a folder of this machine, or of a file system that all readers and writers mount.

No lock is held, so that nobody waits for a process that stands still. A writer takes the part by making the first
segment of the next generation, which only one can; after that it looks how far the one before it has come. That one
looks after every append whether there is a newer generation, and so does a reader after every read: what was written
before the segment was made, the new writer has seen; what was written later counts for nobody.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

from monolith import _core
from monolith.deltalog.file_lineage import Lineage
from monolith.deltalog.file_segments import (
    LastRecord,
    Segment,
    first_head,
    is_damaged_at_start,
    last_record,
    segments_in,
)
from monolith.deltalog.file_tail import FileTail
from monolith.deltalog.parts import require_part
from monolith.deltalog.transport import Claim, Extent
from monolith.errors import AbortedError, FailedPreconditionError, NotFoundError, UnavailableError
from monolith.files import named_errors, replaced_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from monolith.deltalog.increment import Head

MARKER = "delta_log.json"
"""Tells that a folder is a log."""
MARKER_TEXT = b'{"format": "monolith-delta-log", "version": 1}\n'
_DOCUMENTS = "bases"
_PARTS = "parts"
SEGMENT_BYTES = 64 << 20


class FileTransport:
    """`monolith.deltalog.transport.Transport` over segment files.

    Args:
        folder: Of the log; made by the first writer.
        segment_bytes: A segment that has so many bytes is followed by another one; trimming removes whole segments.
    """

    def __init__(self, folder: str | os.PathLike[str], *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folder = Path(folder).absolute()
        self._segment_bytes = segment_bytes
        self._last: dict[str, LastRecord] = {}
        """Part -> what it ended with when somebody asked; any thread may put a newer one there."""

    @property
    def place(self) -> str:
        """The folder."""
        return str(self._folder)

    def parts(self) -> list[str]:
        """Names of the folders that have records, damaged ones among them."""
        self._require_log()
        with named_errors(self.place, "listed"):
            found = [each.name for each in (self._folder / _PARTS).iterdir()] if self._has_parts else []
        return sorted(name for name in found if self.extent(name) is not None or self._is_damaged(name))

    def extent(self, part: str) -> Extent | None:
        """By the heads of the segments and the records of the last one."""
        folder = self._part(part)
        segments = segments_in(folder)
        with named_errors(str(folder), "read"):
            last = last_record(folder, segments, self._last.get(part))
        if last is None:
            return None
        self._last[part] = last
        heads = (head for each in segments if (head := first_head(folder, each)) is not None)
        first = next((head.number for head in heads), last.head.number)
        return Extent(first, last.head.number + 1, last.segment.generation, last.head.writer)

    def open(self, part: str, opening: Callable[[Claim], bytes], *, after_writer: int | None = None) -> FileAppender:
        """Makes the first segment of a generation, then looks where the one before it has ended."""
        require_part(part)
        folder = self._make_folder(part)
        for attempt in itertools.count():
            found = self.extent(part)
            self._require_last(part, found, after_writer)
            try:
                return self._opened(part, folder, opening, after_writer)
            except ContendedError:
                pass  # somebody else opened it at the same time; one of us comes last
            except AbortedError:
                if after_writer is not None:
                    raise
            time.sleep(random.uniform(0, 0.001 * 2 ** min(attempt, 6)))  # noqa: S311 - spreads load, guards nothing
        raise AssertionError("unreachable")

    def tail(self, part: str, number: int | None) -> FileTail:
        """A place in the segment that has the number."""
        return FileTail(self._part(part), number)

    def trim(self, part: str, below: int) -> int:
        """Removes segments that have nothing but lower numbers."""
        folder = self._part(part)
        lineage = Lineage(folder)
        for segment, following in itertools.pairwise(segments_in(folder)):
            if segment.generation == following.generation:
                head = first_head(folder, following)
                end = None if head is None else head.number
            else:
                end = lineage.end_of(segment.generation)
            if end is None or end > below:
                break
            with named_errors(str(folder / segment.name), "removed"):
                (folder / segment.name).unlink(missing_ok=True)
        found = self.extent(part)
        return 0 if found is None else found.first

    # Documents

    def put_document(self, name: str, text: bytes) -> None:
        """A file that takes the place of the one before it."""
        self._make_folder(None)
        with named_errors(name, "written"):
            (self._folder / _DOCUMENTS).mkdir(exist_ok=True)
        path = self._folder / _DOCUMENTS / name
        with replaced_file(path) as temporary, named_errors(str(path), "written"):
            temporary.write_bytes(text)
        _core.sync_directory(str(path.parent))

    def documents(self) -> dict[str, bytes]:
        """Every JSON file among them; one that vanishes meanwhile was removed."""
        found: dict[str, bytes] = {}
        folder = self._folder / _DOCUMENTS
        with named_errors(str(folder), "read"):
            for path in sorted(folder.glob("*.json")):
                try:
                    found[path.name] = path.read_bytes()
                except FileNotFoundError:
                    continue
        return found

    def remove_document(self, name: str) -> None:
        """Removes the file."""
        with named_errors(name, "removed"):
            (self._folder / _DOCUMENTS / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Holds nothing."""

    # Inside

    @property
    def _has_parts(self) -> bool:
        return (self._folder / _PARTS).is_dir()

    def _is_damaged(self, part: str) -> bool:
        """Whether a part begins with a record that cannot be read."""
        folder = self._part(part)
        return any(is_damaged_at_start(folder, each) for each in segments_in(folder))

    def _part(self, part: str) -> Path:
        require_part(part)
        return self._folder / _PARTS / part

    def _require_log(self) -> None:
        if not (self._folder / MARKER).is_file():
            raise NotFoundError(
                f"'{self._folder}': there is no delta log ({MARKER} is missing); the first writer makes it"
            )

    def _make_folder(self, part: str | None) -> Path:
        """The folder of a part, and of the log, each known for good to the folder that it is in."""
        folder = self._folder if part is None else self._part(part)
        with named_errors(str(folder), "made"):
            if self._holds_other_things():
                raise FailedPreconditionError(
                    f"'{self._folder}': it holds other things than a delta log; give another folder"
                )
            self._folder.mkdir(parents=True, exist_ok=True)
            if not (self._folder / MARKER).is_file():
                with replaced_file(self._folder / MARKER) as temporary:
                    temporary.write_bytes(MARKER_TEXT)
                _core.sync_directory(str(self._folder))
            if part is not None and not folder.is_dir():
                folder.mkdir(parents=True, exist_ok=True)
                for each in (folder.parent, self._folder, self._folder.parent):
                    _core.sync_directory(str(each))
        return folder

    def _holds_other_things(self) -> bool:
        """Whether it is the folder of something else: one that another writer makes just now holds the marker alone."""
        if not self._folder.is_dir():
            return False
        others = [each.name for each in self._folder.iterdir() if not each.name.lstrip(".").startswith(MARKER)]
        return bool(others) and not (self._folder / MARKER).is_file()

    def _opened(
        self, part: str, folder: Path, opening: Callable[[Claim], bytes], after_writer: int | None
    ) -> FileAppender:
        segment = Segment(self._claimed(folder), 0)
        path = folder / segment.name
        try:
            with named_errors(str(folder), "read"):
                record = last_record(folder, [each for each in segments_in(folder) if each < segment])
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
            # Nobody is to wait for an opening that does not come. Where it is there all the same, it stays.
            if first_head(folder, segment) is None:
                with contextlib.suppress(OSError):
                    path.unlink()
            raise
        return appender

    def _require_last(self, part: str, last: Head | Extent | None, writer: int | None) -> None:
        if writer is not None and (last is None or last.writer != writer):
            raise replaced(self.place, part, -1 if last is None else last.generation)

    def _claimed(self, folder: Path) -> int:
        """The generation that is ours now: nobody else has made its first segment."""
        while True:
            highest = max((each.generation for each in segments_in(folder)), default=0)
            path = folder / Segment(highest + 1, 0).name
            with named_errors(str(path), "made"):
                try:
                    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
                except FileExistsError:
                    continue
            _core.sync_directory(str(folder))
            return highest + 1


class FileAppender:
    """Writes the segments of one generation."""

    def __init__(self, folder: Path, part: str, segment: Segment, segment_bytes: int) -> None:
        self._folder = folder
        self._part = part
        self._segment = segment
        self._segment_bytes = segment_bytes
        self._offset = 0
        self._descriptor: int | None = os.open(folder / segment.name, os.O_WRONLY)

    def append(self, number: int, record: bytes) -> None:  # noqa: ARG002 - records tell their numbers
        """Writes, waits for the disk, and looks whether the part is still ours."""
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
        newer = [each for each in segments_in(self._folder) if each.generation > self._segment.generation]
        if newer:
            if all(first_head(self._folder, each) is None for each in newer):
                raise ContendedError(f"'{self._folder}': somebody else opens the part at this moment")
            raise replaced(str(self._folder.parent.parent), self._part, newer[-1].generation)

    def close(self) -> None:
        """Closes the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _roll(self) -> None:
        following = Segment(self._segment.generation, self._segment.place + 1)
        descriptor = os.open(self._folder / following.name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        self.close()
        self._descriptor, self._segment, self._offset = descriptor, following, 0
        _core.sync_directory(str(self._folder))


class ContendedError(UnavailableError):
    """Somebody else has made a segment and has not written to it yet."""


def replaced(place: str, part: str, newest: int) -> AbortedError:
    """What a writer is told that has lost its part."""
    return AbortedError(
        f"delta log '{place}', part {part!r}: another writer has the part now, with generation {newest}; this one was"
        " replaced and must end"
    )
