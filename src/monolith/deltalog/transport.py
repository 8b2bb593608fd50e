"""Storage of the records of a log: one interface over files, objects and Kafka.

A part is a sequence of consecutively numbered records, in the same order for all readers. Once `append` returns, the
record is durable; after a failed `append` it may or may not be in the log, and the writer finds out by reopening the
part. Opening a part fences its previous writer: that writer can no longer append.

`tests/contracts/test_delta_transports.py` runs on every implementation; CONTRIBUTING.md describes how to add one.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping


class Extent(NamedTuple):
    """What a part has now."""

    first: int
    """Number of the first remaining record."""
    next: int
    """Number after that of the last record."""
    generation: int
    """Generation of the last record."""
    writer: int
    """Id of the writer of the last record."""


class Claim(NamedTuple):
    """The numbers that go into the opening of a generation."""

    generation: int
    number: int
    follows: int | None = None
    """The generation that it continues, 0: none; None: given by the order of the storage."""


class Tail(Protocol):
    """A cursor in a part from which records are read. Not thread-safe."""

    def next(self) -> bytes | None:
        """Returns the next record; None if there is none yet, or it is still being written.

        If the log is damaged, the bytes may be no record, and records of replaced writers may be among them: `Replay`
        decides which of them count.

        Raises:
            UnavailableError: the log is unreachable.
            DataLossError: a record is in the place of another one; the message names the file or object.
        """

    @property
    def where(self) -> str:
        """Location of the last bytes that `next` returned: file and offset, object, or offset of a topic."""

    def skip(self) -> None:
        """Moves past the last bytes that `next` returned, which were no record, to the next record that can be found.

        For audits of a damaged log; a reader that applies records restarts at a base.
        """

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Waits until there may be more, `seconds` have passed, or `stop` is set."""

    def bytes_behind(self) -> int:
        """Returns the approximate number of bytes between here and the end of the part."""

    def unread_bytes(self) -> int:
        """Returns the bytes of an unfinished or damaged record here, if no intact record follows."""

    def close(self) -> None:
        """Releases files and connections. Idempotent."""


class Appender(Protocol):
    """The right to write one generation of a part. Belongs to one thread at a time."""

    def append(self, number: int, record: bytes) -> None:
        """Appends a record, which is durable when this returns.

        After an error the appender is unusable: the record may or may not be in the log.

        Raises:
            AbortedError: another writer has opened the part.
            UnavailableError, ResourceExhaustedError, PermissionDeniedError: the record could not be written.
        """

    def close(self) -> None:
        """Releases files and connections. Idempotent."""


class Transport(abc.ABC):
    """The records of a log and its small documents, made from its place and options of `DeltaLog`. Thread-safe."""

    holds_bases: ClassVar[bool] = True
    """Whether `DeltaLog` may write bases below `place`; if not, it needs a `base_folder`, as for Kafka."""
    joins_records: ClassVar[bool] = False
    """Whether `Appender.append` takes several records end to end, with the number of the first, in one write."""
    place: str
    """Path or URL of the log, for messages."""

    @abc.abstractmethod
    def __init__(self, place: str, **options: Any) -> None: ...

    @abc.abstractmethod
    def parts(self) -> list[str]:
        """Returns the names of the parts that have records, sorted.

        Raises:
            NotFoundError: the log does not exist.
        """

    @abc.abstractmethod
    def extent(self, part: str) -> Extent | None:
        """Returns what a part has now; None: nothing."""

    @abc.abstractmethod
    def open(self, part: str, opening: Callable[[Claim], bytes], *, after_writer: int | None = None) -> Appender:
        """Claims a part, replacing its writer, by appending a record that opens the next generation.

        Args:
            part: Its name.
            opening: Builds that record.
            after_writer: Id of the writer that must have written the last record; None: any. So a writer resumes after
                an error without taking the part from a writer that has replaced it.

        Raises:
            AbortedError: another writer has written the last record.
            UnavailableError, ResourceExhaustedError, PermissionDeniedError: the opening could not be written.
        """

    @abc.abstractmethod
    def tail(self, part: str, number: int | None) -> Tail:
        """Returns a cursor at a number, or at the first remaining record if that is higher or `number` is None."""

    @abc.abstractmethod
    def trim(self, part: str, below: int) -> int:
        """Removes records with lower numbers, as far as the storage can; the last record stays.

        Returns:
            The number of the first remaining record.
        """

    # Documents, such as those that name bases

    @abc.abstractmethod
    def put_document(self, name: str, text: bytes) -> None:
        """Writes a small document, atomically replacing one of the same name."""

    @abc.abstractmethod
    def documents(self) -> Mapping[str, bytes]:
        """Returns all documents by name."""

    @abc.abstractmethod
    def remove_document(self, name: str) -> None:
        """Removes a document, if it exists."""

    def close(self) -> None:  # noqa: B027 - most transports hold nothing
        """Closes connections. Idempotent."""
