"""The folder of a snapshot: names of its files, its lock, and how a manifest takes effect."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from monolith import _core
from monolith.errors import (
    DataLossError,
    FailedPreconditionError,
    FileUnavailableError,
    NotFoundError,
    OpError,
    UnavailableError,
)
from monolith.tables.history import ALL_BUCKETS
from monolith.tables.snapshot.manifest import MANIFEST_NAME, SnapshotManifest, read_manifest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from monolith.tables.snapshot.manifest import FileEntry

_OURS = re.compile(r"buckets-\d{4}-\d{4}-[0-9a-f]{16}\.rows(\.tmp)?|manifest\.json\.tmp")
"""Every name that a killed save may leave in the folder."""


class FolderLock:
    """Keeps a folder's snapshot from being replaced while it is read, and from being written by two savers.

    An advisory lock on the folder itself: it ends with the process. File systems without such locks are used without a
    lock.
    """

    def __init__(self, folder: Path, *, exclusive: bool) -> None:
        self._descriptor = _open_folder(folder)
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        try:
            fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in {errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL}:
                return
            os.close(self._descriptor)
            doing = "read or written" if exclusive else "written"
            raise UnavailableError(f"folder '{folder}': its snapshot is being {doing} by another; try again") from error

    def release(self) -> None:
        """Releases the lock. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def file_name(begin: int, end: int, snapshot_id: int) -> str:
    """Returns the name of the file of buckets [begin, end); the id separates it from files of the replaced snapshot."""
    return f"buckets-{begin:04d}-{end:04d}-{snapshot_id:016x}.rows"


def bucket_ranges(num_files: int, buckets: range = ALL_BUCKETS) -> Iterator[tuple[int, int]]:
    """Cuts consecutive buckets into `num_files` runs whose sizes differ by at most one."""
    size, rest = divmod(len(buckets), num_files)
    begin = buckets.start
    for number in range(num_files):
        end = begin + size + (number < rest)
        yield begin, end
        begin = end


def make_folder(folder: Path) -> None:
    """Creates the folder and its parents, durably."""
    try:
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileUnavailableError(f"folder '{folder}': cannot be created: {error}") from error
    for path in missing:
        _core.sync_directory(str(path.parent))


def refuse_newer_generation(folder: Path, generation: int) -> None:
    """Keeps a trainer that has been replaced from overwriting its successor's snapshot.

    Raises:
        FailedPreconditionError: the folder holds a snapshot of a higher generation.
    """
    try:
        present = read_manifest(folder)
    except (NotFoundError, DataLossError):  # nothing to replace, or nothing that could be restored
        return
    require_generation(present, generation, place=f"folder '{folder}'")


def require_generation(present: SnapshotManifest, generation: int, *, place: str) -> None:
    """Applies the rule of `refuse_newer_generation` to a manifest that was read already."""
    if present.generation > generation:
        raise FailedPreconditionError(
            f"{place}: holds a snapshot of generation {present.generation}, which a save of generation {generation}"
            " must not replace"
        )


def commit(folder: Path, manifest: SnapshotManifest) -> None:
    """Makes the files durable, then the manifest, which atomically replaces the old snapshot by the new one.

    On an error the new files are removed, unless the manifest is in place already.
    """
    try:
        _core.sync_directory(str(folder))
        _core.commit_file(str(folder / MANIFEST_NAME), manifest.to_bytes())
    except OpError:
        remove_files(folder, manifest.files)
        raise
    _core.sync_directory(str(folder))


def remove_files(folder: Path, files: Iterable[FileEntry]) -> None:
    """Removes bucket files that will not be committed."""
    for file in files:
        with suppress(OSError):  # the error that led here matters more
            (folder / file.name).unlink()


def remove_unlisted(folder: Path, manifest: SnapshotManifest) -> None:
    """Removes files of earlier snapshots and of unfinished saves. Only names that a save makes are touched."""
    with suppress(OSError):  # what stays is unlisted and does no harm
        for name in unlisted([path.name for path in folder.iterdir()], manifest):
            (folder / name).unlink()


def unlisted(names: Iterable[str], manifest: SnapshotManifest) -> list[str]:
    """Returns the names that a save makes and this manifest does not list."""
    listed = {file.name for file in manifest.files}
    return [name for name in names if _OURS.fullmatch(name) and name not in listed]


def _open_folder(folder: Path) -> int:
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"folder '{folder}': no snapshot here (not a folder)") from error
    except OSError as error:
        raise FileUnavailableError(f"folder '{folder}': cannot be opened: {error}") from error
