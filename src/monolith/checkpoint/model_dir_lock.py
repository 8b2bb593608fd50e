"""One chief per model directory: a lock that dies with its process, and generations where there are no locks.

The lock is on a file of the directory that names its holder. Other file systems have no locks: there, and in addition
to the lock, a run claims a *generation*, and commits nothing once another has claimed a higher one.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
import socket
import time
import weakref
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Self

from monolith.checkpoint.folder import FolderPath, open_folder
from monolith.errors import DataLossError, FailedPreconditionError, UnavailableError
from monolith.files import canonical, local_path, named_errors

if TYPE_CHECKING:
    from pathlib import Path

    from monolith.checkpoint.folder import Folder

LOCK = "monolith_chief.lock"
GENERATION = "monolith_generation"

_NUMBER = re.compile(rb'\{\s*"generation":\s*(\d+),')
_MOST_UNCOMMITTED = 1000
"""Assumed limit of runs that claim a directory without a commit between them."""
_log = logging.getLogger(__name__)

_NO_LOCKS = frozenset({errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL})


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

    def __init__(self, model_dir: FolderPath) -> None:
        self._descriptor = -1
        folder = local_path(model_dir)
        if folder is None:
            return
        open_folder(folder).make()
        path = folder / LOCK
        with named_errors(str(path), "opened"):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if not _lock(descriptor, folder):
                os.close(descriptor)
                return
            _write_holder(descriptor)
            self._finalizer = weakref.finalize(self, _close, descriptor, os.getpid())
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        _HELD.add(self)

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock."""
        return self._descriptor >= 0

    def release(self) -> None:
        """Releases the lock. Idempotent."""
        if self._descriptor >= 0:
            self._descriptor = -1
            self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


_HELD: weakref.WeakSet[ModelDirLock] = weakref.WeakSet()


def _lock(descriptor: int, folder: Path) -> bool:
    """Takes the lock; returns False where the file system has none."""
    with named_errors(str(folder / LOCK), "locked"):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UnavailableError(
                f"model directory '{folder}': in use by {_read_holder(descriptor)}; one chief may write to it at a"
                " time: end that process, or choose another directory"
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return False
    return True


def _close(descriptor: int, pid: int) -> None:
    if os.getpid() == pid:  # a child has closed its copy already
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # also for a child that was forked just now
            os.close(descriptor)


def _drop_in_child() -> None:
    """Closes the lock in a forked child, such as a data loader's worker, which must not keep it when the chief dies."""
    for lock in list(_HELD):
        descriptor, lock._descriptor = lock._descriptor, -1  # noqa: SLF001 - of this module
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)


os.register_at_fork(after_in_child=_drop_in_child)


def _read_holder(descriptor: int) -> str:
    try:
        return str(Holder(**json.loads(os.pread(descriptor, 4096, 0))))
    except (OSError, ValueError, TypeError):  # the lock was just taken, and its holder is not written yet
        return "another process"


def _write_holder(descriptor: int) -> None:
    with suppress(OSError):  # a full disk: the lock itself does not depend on the text
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, canonical(asdict(Holder.this_process())), 0)


class GenerationClaim:
    """The right to commit to a model directory, until another claims a higher generation."""

    def __init__(self, folder: Folder, *, above: int) -> None:
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


def claimed_generation(folder: Folder, *, above: int) -> int:
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


def read_generation(folder: Folder) -> tuple[int, Holder] | None:
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
