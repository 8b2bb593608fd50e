"""Where the records of a log are kept: one interface over files, objects and Kafka.

A part is a sequence of records in one order that everybody sees, each with the next number. A record that `append` has
returned from is there for good; one whose `append` has failed may be there or not, and the writer finds out by opening
the part once more. Who opens a part takes it from who had it: that one cannot append any more.

`tests/contracts/test_delta_transports.py` runs on every implementation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping


class Extent(NamedTuple):
    """What a part has now."""

    first: int
    """Number of the first record that is still there."""
    next: int
    """Number behind the last record."""
    generation: int
    """Of the last record."""
    writer: int
    """Who wrote the last record."""


class Claim(NamedTuple):
    """What the opening of a generation is made of."""

    generation: int
    number: int
    follows: int | None = None
    """The generation that it goes on from, 0: none; None: the order of the storage tells it."""


class Tail(Protocol):
    """A place in a part from which records are read. Belongs to one thread."""

    def next(self) -> bytes | None:
        """The next record; None: there is none yet, or it is still being written.

        The bytes may be anything where the log was damaged, and records of writers that were replaced may be among
        them: `Replay` tells which of them count.

        Raises:
            UnavailableError: the log is away.
            DataLossError: a record lies where another one must be; says which file or object.
        """
        ...

    @property
    def where(self) -> str:
        """Where that which `next` handed out last is kept: file and offset, object, or offset of a topic."""
        ...

    def skip(self) -> None:
        """Goes on behind what `next` handed out last, which was no record, at the next record that can be found.

        For who counts what is damaged; a reader that applies begins at a base.
        """
        ...

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Returns when there may be more, after so many seconds, or when told to stop."""
        ...

    def bytes_behind(self) -> int:
        """Bytes between this place and the end of the part, about."""
        ...

    def unread_bytes(self) -> int:
        """Bytes at this place where no whole record follows: of one that is unfinished or damaged."""
        ...

    def close(self) -> None:
        """Gives back what it holds. Calling it again does nothing."""
        ...


class Appender(Protocol):
    """The right to write one generation of a part. Belongs to one thread at a time."""

    def append(self, number: int, record: bytes) -> None:
        """Writes a record; it is there for good when this returns.

        After an error the appender is of no use: whether the record is there is not known.

        Raises:
            AbortedError: another writer has opened the part.
            UnavailableError, ResourceExhaustedError, PermissionDeniedError: it could not be written.
        """
        ...

    def close(self) -> None:
        """Gives back what it holds. Calling it again does nothing."""
        ...


class Transport(Protocol):
    """The records of a log, and the small documents beside them. Any thread may call it."""

    @property
    def place(self) -> str:
        """The log, for what is said of it."""
        ...

    def parts(self) -> list[str]:
        """Names of the parts that have records, sorted.

        Raises:
            NotFoundError: there is no log.
        """
        ...

    def extent(self, part: str) -> Extent | None:
        """What a part has now; None: nothing."""
        ...

    def open(self, part: str, opening: Callable[[Claim], bytes], *, after_writer: int | None = None) -> Appender:
        """Takes a part from whoever has it, by a record that opens the next generation; it is written here.

        Args:
            part: Its name.
            opening: Makes that record.
            after_writer: Who must have written the last record; None: anybody. So a writer goes on after an error
                without taking the part from one that has replaced it.

        Raises:
            AbortedError: somebody else has written the last record.
            UnavailableError, ResourceExhaustedError, PermissionDeniedError: it could not be written.
        """
        ...

    def tail(self, part: str, number: int | None) -> Tail:
        """A place before a number, or before the first record that is there where that one is not; None: the same."""
        ...

    def trim(self, part: str, below: int) -> int:
        """Lets go of records with lower numbers, as far as the storage can; the last one stays.

        Returns:
            The number of the first record that is still there.
        """
        ...

    # Documents, such as those that name bases

    def put_document(self, name: str, text: bytes) -> None:
        """Writes a small document; one of the same name is replaced, whole or not at all."""
        ...

    def documents(self) -> Mapping[str, bytes]:
        """All documents by name."""
        ...

    def remove_document(self, name: str) -> None:
        """Removes one; it need not be there."""
        ...

    def close(self) -> None:
        """Gives back connections. Calling it again does nothing."""
        ...
