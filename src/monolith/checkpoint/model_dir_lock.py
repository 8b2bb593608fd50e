"""One chief per model directory: a lock that dies with its process, and generations where there are no locks.

The lock is on a file of the directory that names its holder. Other file systems have no locks: there, and in addition
to the lock, a run claims a *generation*, and commits nothing once another has claimed a higher one.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Self

from monolith.errors import DataLossError, FailedPreconditionError, OpError, UnavailableError
from monolith.files import LocalStorage, StoragePath, canonical, open_storage

if TYPE_CHECKING:
    from monolith.files import Storage

LOCK = "monolith_chief.lock"
GENERATION = "monolith_generation"

_NUMBER = re.compile(rb'\{\s*"generation":\s*(\d+),')
_MOST_UNCOMMITTED = 1000
"""Assumed limit of runs that claim a directory without a commit between them."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The process that writes to a model directory."""

    host: str
    pid: int
    since: str
    """Local time."""

    def __str__(self) -> str:
        own = " (this process)" if (self.host, self.pid) == (socket.gethostname(), os.getpid()) else ""
        return f"process {self.pid} on host {self.host}{own}, since {self.since}"

    @classmethod
    def this_process(cls) -> Holder:
        """Returns the holder for the calling process."""
        return cls(host=socket.gethostname(), pid=os.getpid(), since=time.strftime("%Y-%m-%d %H:%M:%S"))


class ModelDirLock:
    """Keeps a second chief out of a model directory until `release` or the end of the process.

    Workers, evaluators and readers do not take the lock. Directories on file systems without locks are used without.

    Raises:
        UnavailableError: another process has the lock; names it.
        OpError: the lock file cannot be opened or locked; names it.
    """

    def __init__(self, model_dir: StoragePath) -> None:
        storage = open_storage(model_dir)
        if isinstance(storage, LocalStorage):
            storage.make()
        lock = storage.lock(LOCK)
        if lock is None:
            raise UnavailableError(
                f"model directory '{storage.path}': in use by {_read_holder(storage)}; one chief may write to it at a"
                " time: end that process, or choose another directory"
            )
        self._lock = lock
        if lock.is_held:
            lock.write(canonical(asdict(Holder.this_process())))

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock."""
        return self._lock.is_held

    def release(self) -> None:
        """Releases the lock. Idempotent."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _read_holder(storage: Storage) -> str:
    try:
        return str(Holder(**json.loads(storage.read(LOCK))))
    except (OpError, ValueError, TypeError):  # the lock was just taken, and its holder is not written yet
        return "another process"


class GenerationClaim:
    """The right to commit to a model directory, until another claims a higher generation."""

    def __init__(self, folder: Storage, *, above: int) -> None:
        self.generation = max(above, claimed_generation(folder, above=above)) + 1
        self._folder = folder
        self._holder = Holder.this_process()
        folder.replace(GENERATION, canonical({"generation": self.generation, **asdict(self._holder)}))

    def require(self) -> None:
        """Checks that no other run has claimed the directory since.

        Raises:
            FailedPreconditionError: another run has; names it.
        """
        present = read_generation(self._folder)
        if present is None or present == (self.generation, self._holder):
            return
        generation, holder = present
        if generation >= self.generation:
            raise FailedPreconditionError(
                f"model directory '{self._folder.path}': this run has generation {self.generation} and was replaced by"
                f" {holder} with generation {generation}; nothing was committed"
            )


def claimed_generation(folder: Storage, *, above: int) -> int:
    """Returns the highest generation that was claimed; 0 if none ever was.

    A file that cannot be read was left by a crash: no other failure of a write leaves one. The next claim replaces it,
    with a number above the one in it, or above every number that it can have had.

    Args:
        folder: The model directory.
        above: The highest generation that was committed.
    """
    try:
        present = read_generation(folder)
    except DataLossError as error:
        match = _NUMBER.match(folder.read(GENERATION))
        _log.warning("%s; the file is replaced", error.message)
        return int(match[1]) if match else above + _MOST_UNCOMMITTED
    return 0 if present is None else present[0]


def read_generation(folder: Storage) -> tuple[int, Holder] | None:
    """Returns the highest generation that was claimed, and its holder; None if none ever was.

    Raises:
        DataLossError: the file is damaged.
    """
    if not folder.exists(GENERATION):
        return None
    text = folder.read(GENERATION)
    try:
        values = json.loads(text)
        return int(values.pop("generation")), Holder(**values)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataLossError(f"file '{folder.place(GENERATION)}': not what was written: {error}") from error
