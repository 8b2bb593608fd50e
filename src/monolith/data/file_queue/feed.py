"""Source of the files of a reading, by number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file to read, from a place on."""

    path: str
    place: Any = None
    """Position of the format's reader, in JSON; None: from the start."""


class FileFeed(ABC):
    """Files by number, from 0 on. A number always has the same file, in this run and after a restart."""

    kind: str
    """Kind of this feed in positions."""
    fields: Mapping[str, Any]
    """Fields that positions are checked by: only an equal feed can resume from them."""

    @abstractmethod
    def take(self, number: int) -> FilePart | None:
        """Returns the file of this number; None after the last one."""

    @abstractmethod
    def require_taken(self, count: int) -> None:
        """Refuses to resume after more files than were ever taken.

        Raises:
            OpError: there were not as many.
        """


class Files(ABC):
    """Which files a worker reads: a `FileSet`, or `QueuedFiles`."""

    @abstractmethod
    def feed(self, epoch: int) -> FileFeed:
        """Returns the files of this worker in an epoch."""

    @property
    @abstractmethod
    def is_share(self) -> bool:
        """Whether other workers read other files."""

    @abstractmethod
    def share(self, index: int, count: int) -> Files | None:
        """Files of one of `count` workers, which together have all; None: there are too few files to share out.

        Raises:
            InvalidArgumentError: they cannot be shared out this way.
        """

    @abstractmethod
    def open(self, path: str) -> BinaryIO:
        """Opens one of the files at its start."""


class FixedFeed(FileFeed):
    """Files whose order is known beforehand."""

    kind = "files"

    def __init__(self, order: Sequence[str], digest: str) -> None:
        self._order = order
        self.fields = {"num_files": len(order), "digest": digest}

    def take(self, number: int) -> FilePart | None:
        """Returns the file of this number; None after the last one."""
        return FilePart(self._order[number]) if number < len(self._order) else None

    def require_taken(self, count: int) -> None:
        """Refuses to resume after more files than there are."""
        if count > len(self._order):
            raise InvalidArgumentError(
                f"position for a dataset of kind {self.kind!r}: it is after {count} files, there are {len(self._order)}"
            )
