"""Which files are read, by whom, and in which order: `Files`, which a reading takes by number, and `FileSet`."""

from __future__ import annotations

import hashlib
import logging
import os
from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from monolith.data.pipeline.draws import permutation
from monolith.data.sources.file_patterns import expand_ranges, find_files, open_file
from monolith.errors import InvalidArgumentError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monolith.data.sources.file_patterns import Paths, StorageOptions


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


_LOG = logging.getLogger(__name__)


class FileSet(Files):
    """Files by name or pattern: sorted, shuffled if a seed is given, and every `count`-th of them for a worker.

    Patterns are expanded once, when the set is made. The order is the same on every worker, which then takes its
    share of it, so every file is read exactly once.

    Args:
        paths: Paths, globs (`*`, `?`, `[...]`, `**`), ranges (`{DATE(20240101,20240131)}`, `{INT(0,9)}`), and URLs of
            fsspec; one or many.
        shard: Number of this worker and how many there are.
        seed: Shuffles the files, differently in each epoch; None keeps them sorted.
        storage_options: For the file system of URLs, such as the address of an object store.

    Raises:
        NotFoundError: a name without a pattern in it does not exist (found when it is read), or nothing matches at all.
    """

    def __init__(
        self,
        paths: Paths,
        *,
        shard: tuple[int, int] = (0, 1),
        seed: int | None = None,
        storage_options: StorageOptions = None,
    ) -> None:
        index, count = shard
        if not 0 <= index < count:
            raise ValueError(f"shard must be (number of this worker, number of workers), got {shard}")
        path_list = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
        self._shard = shard
        self.seed = seed
        self.storage_options = dict(storage_options or {})
        patterns = [pattern for path in path_list for pattern in expand_ranges(os.fspath(path))]
        files_of = {pattern: find_files(pattern, self.storage_options) for pattern in patterns}
        self._files = sorted({file for files in files_of.values() for file in files})
        if not self._files:
            raise NotFoundError(f"no file matches {', '.join(map(repr, path_list)) or 'an empty list of paths'}")
        for pattern in (pattern for pattern, files in files_of.items() if not files):
            _LOG.warning("no file matches %r", pattern)
        if len(self._files) <= index:
            _LOG.warning("worker %d of %d has nothing to read: there are %d files", index, count, len(self._files))

    @property
    def files(self) -> tuple[str, ...]:
        """All files, of all workers, sorted."""
        return tuple(self._files)

    def order(self, epoch: int = 0) -> list[str]:
        """Returns the files of this worker, as they are read in an epoch."""
        index, count = self._shard
        if self.seed is None:
            return self._files[index::count]
        return [self._files[place] for place in permutation(len(self._files), self.seed, epoch).tolist()][index::count]

    def digest(self, epoch: int = 0) -> str:
        """Returns a short text that differs when the order does; positions carry it."""
        names = "\n".join(self.order(epoch))
        return hashlib.sha256(names.encode("utf-8", "surrogateescape")).hexdigest()[:16]

    def feed(self, epoch: int) -> FileFeed:
        """Returns the files of this worker in an epoch, for a reading."""
        return FixedFeed(self.order(epoch), self.digest(epoch))

    @property
    def is_share(self) -> bool:
        """Whether it is one of several shards."""
        return self._shard != (0, 1)

    def share(self, index: int, count: int) -> FileSet | None:
        """Returns every `count`-th of the files of this worker; None: not every one would have a file."""
        own, workers = self._shard
        if len(self._files[own::workers]) < count:
            return None
        other = copy(self)
        other._shard = (own + workers * index, workers * count)  # noqa: SLF001 - a copy of this one
        return other

    def __repr__(self) -> str:
        more = f" and {len(self._files) - 1} more" if len(self._files) > 1 else ""
        shard = "" if self._shard == (0, 1) else f", shard={self._shard}"
        return f"{self._files[0]!r}{more}{shard}{'' if self.seed is None else f', seed={self.seed}'}"

    def has_places(self, path: str) -> bool:
        """Returns whether a file can be read from any byte on, unlike a pipe or some URLs."""
        if "://" not in path:
            return Path(path).is_file()
        with self.open(path) as file:
            return file.seekable()

    def open(self, path: str) -> BinaryIO:
        """Returns a file of the set, open to read from its start.

        Raises:
            NotFoundError: there is no such file.
        """
        return open_file(path, self.storage_options)
