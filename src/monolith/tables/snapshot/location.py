"""The location of a snapshot: a local folder itself, or a remote one through a temporary local folder.

Files are written and checked by the core, which supports local paths only; other fsspec paths are copied. The manifest
is written last: it shows either the old snapshot or the new one.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from monolith.errors import (
    DataLossError,
    FailedPreconditionError,
    FileUnavailableError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    UnavailableError,
)
from monolith.files import RemoteStorage, may_hold, open_storage
from monolith.tables.snapshot.manifest import MANIFEST_NAME, SnapshotManifest, manifest_of, unlisted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from monolith.files import FileLock, Storage
    from monolith.tables.snapshot.manifest import FileEntry

SnapshotPath = str | os.PathLike[str]


def open_destination(path: SnapshotPath, generation: int) -> Destination:
    """Prepares a path for one save.

    Raises:
        UnavailableError: another process is saving to it or restoring from it.
        FailedPreconditionError: it holds a snapshot of a higher generation.
    """
    storage = open_storage(path)
    try:
        storage.make()
    except InvalidArgumentError as error:
        raise FileUnavailableError(f"folder '{storage.path}': cannot be created: {error}") from error
    destination = Destination(storage)
    try:
        _refuse_newer(storage, generation)
    except BaseException:
        destination.close()
        raise
    return destination


def open_source(path: SnapshotPath) -> SnapshotSource:
    """Opens the snapshot at a path.

    Raises:
        NotFoundError: there is none.
        DataLossError: its manifest is damaged.
    """
    return SnapshotSource(open_storage(path))


class Destination:
    """The folder of one save: locked against other savers until `close`."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = _locked(storage, shared=False)

    def publish(self, manifest: SnapshotManifest) -> None:
        """Commits the files that the manifest lists, which must exist already, as the snapshot of the path.

        Removes the files of the previous snapshot. On an error removes the new files, unless the manifest is in place.
        """
        storage, text = self._storage, manifest.to_bytes()
        try:
            storage.sync()
            storage.replace(MANIFEST_NAME, text)
        except OpError:
            if not may_hold(storage, MANIFEST_NAME, text):
                _remove(storage, manifest.files)
            raise
        with suppress(OpError):  # what stays is unlisted and does no harm
            for name in unlisted(storage.names(), manifest):
                storage.remove(name)

    def close(self) -> None:
        """Lets other processes save. Idempotent."""
        self._lock.release()


def _refuse_newer(storage: Storage, generation: int) -> None:
    """Keeps a trainer that has been replaced from overwriting its successor's snapshot."""
    try:
        present = manifest_of(storage)
    except (NotFoundError, DataLossError):  # nothing to replace, or nothing that could be restored
        return
    if present.generation > generation:
        raise FailedPreconditionError(
            f"folder '{storage.path}': holds a snapshot of generation {present.generation}, which a save of generation"
            f" {generation} must not replace"
        )


class SnapshotSource:
    """A snapshot to read: protected from being replaced until `close`."""

    def __init__(self, storage: Storage) -> None:
        try:
            self._lock = _locked(storage, shared=True)
        except NotFoundError as error:
            raise NotFoundError(f"folder '{storage.path}': no snapshot here (not a folder)") from error
        try:
            self.manifest = manifest_of(storage)
        except BaseException:
            self.close()
            raise

    manifest: SnapshotManifest

    def close(self) -> None:
        """Lets other processes replace it. Idempotent."""
        self._lock.release()


@contextmanager
def writing_folder(path: SnapshotPath) -> Iterator[Path]:
    """Yields a local folder to write into: the path itself, or a temporary one whose files are copied there later."""
    storage = open_storage(path)
    if not isinstance(storage, RemoteStorage):
        yield Path(storage.path)
        return
    with tempfile.TemporaryDirectory(prefix="monolith-snapshot-") as temporary:
        yield Path(temporary)
        storage.make()
        for file in sorted(Path(temporary).iterdir()):
            storage.put(file.name, file)


def remove_written(path: SnapshotPath, files: Iterable[FileEntry]) -> None:
    """Removes files that no manifest will list. Ignores errors: unlisted files do no harm."""
    _remove(open_storage(path), files)


@contextmanager
def fetched_files(path: SnapshotPath, files: Iterable[FileEntry]) -> Iterator[list[Path]]:
    """Yields local paths of some files of a snapshot; remote files are copied, and the copies removed at the end.

    Raises:
        NotFoundError: a remote file is missing; a local one shows when it is read.
    """
    storage = open_storage(path)
    if not isinstance(storage, RemoteStorage):
        yield [Path(storage.place(file.name)) for file in files]
        return
    with tempfile.TemporaryDirectory(prefix="monolith-snapshot-") as temporary:
        copies = [(file.name, Path(temporary) / file.name) for file in files]
        for name, copy in copies:
            storage.fetch(name, copy)
        yield [copy for _, copy in copies]


def _locked(storage: Storage, *, shared: bool) -> FileLock:
    """Keeps a snapshot from being replaced while it is read, and from being written by two savers."""
    lock = storage.lock(shared=shared)
    if lock is None:
        doing = "written" if shared else "read or written"
        raise UnavailableError(f"folder '{storage.path}': its snapshot is being {doing} by another; try again")
    return lock


def _remove(storage: Storage, files: Iterable[FileEntry]) -> None:
    for file in files:
        with suppress(OpError):  # the error that led here matters more
            storage.remove(file.name)
