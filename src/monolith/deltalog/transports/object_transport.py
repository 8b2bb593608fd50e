"""A log on any file system that fsspec supports, one object per increment.

The name of an object is the number of its increment, and objects are created exclusively: of two writers one gets a
number, and the other reads which writer has it. So the order of a part needs no lock and no server. A file system whose
fsspec driver has no exclusive create is rejected when the part is opened.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from monolith.deltalog.increment import HEAD, RecordHeader, read_head, require_part
from monolith.deltalog.transport import Claim, Extent
from monolith.deltalog.transports.file_transport import MARKER, MARKER_TEXT, FolderTransport, replaced
from monolith.errors import DataLossError, FailedPreconditionError, NotFoundError, UnimplementedError
from monolith.files import open_storage

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

_NAME = re.compile(r"(\d{20})\.increment")
POLL_SECONDS = 0.1


class ObjectTransport(FolderTransport):
    """A transport over objects.

    Args:
        url: URL of the log, as fsspec takes it.
        poll_seconds: Interval at which a waiting reader polls for the next object.
    """

    def __init__(self, url: str, *, poll_seconds: float = POLL_SECONDS) -> None:
        self.place = url.rstrip("/")
        self._poll_seconds = poll_seconds
        self._storage = open_storage(self.place)

    def parts(self) -> list[str]:
        """Returns the names of the folders that have objects."""
        self._require_log()
        names = self._storage.below("parts").names()
        return sorted(name for name in names if self.numbers(name))

    def extent(self, part: str) -> Extent | None:
        """Returns what a part has, from the names of its objects and the head of the last readable one.

        Each unreadable object after that one may have opened a generation.
        """
        numbers = self.numbers(part)
        for behind, number in enumerate(reversed(numbers)):
            try:
                last = self.head(part, number)
            except (DataLossError, NotFoundError):
                continue
            return Extent(numbers[0], numbers[-1] + 1, last.generation + behind, -1 if behind else last.writer)
        return Extent(numbers[0], numbers[-1] + 1, len(numbers), -1) if numbers else None

    def open(self, part: str, opening: Callable[[Claim], bytes], *, after_writer: int | None = None) -> ObjectAppender:
        """Creates the next object with the opening; retries with the following number if another writer was faster."""
        require_part(part)
        self._require_exclusive()
        self._make_log()
        self._storage.below(f"parts/{part}").make()
        while True:
            extent = self.extent(part)
            if after_writer is not None and (extent is None or extent.writer != after_writer):
                if extent is not None and extent.writer == -1:
                    self.head(part, extent.next - 1)  # writer unknown: raises with the damaged object
                raise replaced(self.place, part, -1 if extent is None else extent.generation)
            claim = Claim(1, 0) if extent is None else Claim(extent.generation + 1, extent.next)
            appender = ObjectAppender(self, part)
            if self.create(part, claim.number, opening(claim)):
                return appender

    def tail(self, part: str, number: int | None) -> ObjectTail:
        """Returns a reader that starts at the object of a number."""
        return ObjectTail(self, part, number, self._poll_seconds)

    def trim(self, part: str, below: int) -> int:
        """Removes objects of lower numbers; returns the first number that is left."""
        numbers = self.numbers(part)
        gone = [number for number in numbers[:-1] if number < below]
        for number in gone:  # the lowest first, so that no gap arises
            self._storage.remove(_name(part, number))
        return numbers[len(gone)] if numbers else 0

    # For tails and appenders

    def numbers(self, part: str) -> list[int]:
        """Returns the numbers of the objects of a part, sorted."""
        require_part(part)
        matches = (_NAME.fullmatch(name) for name in self._storage.below(f"parts/{part}").names())
        return sorted(int(match[1]) for match in matches if match)

    def path(self, part: str, number: int) -> str:
        """Returns the path of the object of a number."""
        return self._storage.place(_name(part, number))

    def head(self, part: str, number: int) -> RecordHeader:
        """Reads the head of the record of a number."""
        head = self._storage.read_start(_name(part, number), HEAD.size)
        return read_head(head, origin=self.path(part, number))

    def read(self, part: str, number: int) -> bytes | None:
        """Reads the record of a number; None if it does not exist."""
        try:
            return self._storage.read(_name(part, number))
        except NotFoundError:
            return None

    def create(self, part: str, number: int, record: bytes) -> bool:
        """Creates the object of a number, unless it exists; returns whether it did."""
        return self._storage.create(_name(part, number), record)

    def size(self, part: str, number: int) -> int:
        """Returns the size of the object of a number; 0 if it was removed."""
        try:
            return self._storage.size(_name(part, number))
        except NotFoundError:
            return 0

    # Internals

    def _require_exclusive(self) -> None:
        """Rejects drivers that check and then write."""
        if not self._storage.creates_exclusively:
            raise UnimplementedError(
                f"'{self.place}': its driver cannot create an object only if it does not exist, which a delta log"
                " requires; use another object store, or Kafka"
            )

    def _make_log(self) -> None:
        if self._storage.exists(MARKER):
            return
        # List first, then check the marker again: another writer may be creating the log.
        others = [name for name in self._storage.names() if not name.startswith(MARKER)]
        if others and not self._storage.exists(MARKER):
            raise FailedPreconditionError(
                f"'{self.place}': it holds other things than a delta log ({MARKER} is missing); give another folder"
            )
        self._storage.make()
        self._storage.replace(MARKER, MARKER_TEXT)


def _name(part: str, number: int) -> str:
    return f"parts/{part}/{number:020d}.increment"


class ObjectAppender:
    """Writer of the objects of one generation."""

    def __init__(self, transport: ObjectTransport, part: str) -> None:
        self._transport = transport
        self._part = part

    def append(self, number: int, record: bytes) -> None:
        """Creates the object of a number."""
        if not self._transport.create(self._part, number, record):
            generation = self._transport.head(self._part, number).generation
            raise replaced(self._transport.place, self._part, generation)

    def close(self) -> None:
        """Does nothing: no resources are held."""


class ObjectTail:
    """`monolith.deltalog.transport.Tail` over objects."""

    def __init__(self, transport: ObjectTransport, part: str, number: int | None, poll_seconds: float) -> None:
        self._transport = transport
        self._part = part
        self._next = number
        self._poll_seconds = poll_seconds
        self._ahead: bytes | None = None
        self.where = ""
        """Path of the last returned object."""

    def next(self) -> bytes | None:
        """Returns the object of the next number, or the first one that exists after it."""
        if self._next is None:
            numbers = self._transport.numbers(self._part)
            if not numbers:
                return None
            self._next = numbers[0]
        record = self._ahead or self._transport.read(self._part, self._next)
        self._ahead = None
        if record is None:
            later = [number for number in self._transport.numbers(self._part) if number >= self._next]
            if not later:
                return None
            self._next = later[0]
            record = self._transport.read(self._part, self._next)
        if record is not None:
            self.where = self._where(self._next)
            self._require_number(record, self._next)
            self._next += 1
        return record

    def _where(self, number: int) -> str:
        return f"object '{self._transport.path(self._part, number)}', offset 0"

    def _require_number(self, record: bytes, number: int) -> None:
        """Rejects the record of another object; an unreadable record is left to the reader."""
        try:
            actual = read_head(record, origin=self.where).number
        except DataLossError:
            return
        if actual != number:
            raise DataLossError(
                f"{self.where}: increment {number} expected, got increment {actual} (the object was copied or renamed);"
                " resume from a later base"
            )

    def skip(self) -> None:
        """Moves past an object that `next` rejected; otherwise the tail is already at the next record."""
        if self._next is not None and self.where == self._where(self._next):
            self._next += 1

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Polls for the next object."""
        waited = 0.0
        while waited < seconds and not stop.wait(min(self._poll_seconds, seconds - waited)):
            waited += self._poll_seconds
            if self._next is None:
                return
            self._ahead = self._transport.read(self._part, self._next)
            if self._ahead is not None:
                return

    def bytes_behind(self) -> int:
        """Returns the total size of the objects to come."""
        first = 0 if self._next is None else self._next
        numbers = [number for number in self._transport.numbers(self._part) if number >= first]
        return sum(self._transport.size(self._part, number) for number in numbers)

    def unread_bytes(self) -> int:
        """Returns 0: every object, even a damaged one, has a number and is counted by it."""
        return 0

    def close(self) -> None:
        """Does nothing: no resources are held."""
        self._ahead = None
