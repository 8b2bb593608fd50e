"""The location of a snapshot: a local folder itself, or a remote one through a temporary local folder.

Files are written and checked by the core, which supports local paths only; other fsspec paths are copied. A remote
manifest is written last and by one call, so that an object store shows either the old snapshot or the new one.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import fsspec

from monolith.errors import DataLossError, FileUnavailableError, NotFoundError
from monolith.files import local_path
from monolith.tables.snapshot.files import (
    FolderLock,
    commit,
    make_folder,
    refuse_newer_generation,
    remove_files,
    remove_unlisted,
    require_generation,
    unlisted,
)
from monolith.tables.snapshot.manifest import MANIFEST_NAME, SnapshotManifest, read_manifest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from monolith.tables.snapshot.manifest import FileEntry

SnapshotPath = str | os.PathLike[str]


class Destination(Protocol):
    """The folder of one save: locked against other savers until `close`."""

    def publish(self, manifest: SnapshotManifest) -> None:
        """Commits the files that the manifest lists, which must exist already, as the snapshot of the path.

        Removes the files of the previous snapshot. On an error removes the new files, unless the manifest is in place.
        """

    def close(self) -> None:
        """Lets other processes save. Idempotent."""


class SnapshotSource(Protocol):
    """A snapshot to read: protected from being replaced until `close`."""

    manifest: SnapshotManifest

    def close(self) -> None:
        """Lets other processes replace it. Idempotent."""


def open_destination(path: SnapshotPath, generation: int) -> Destination:
    """Prepares a path for one save.

    Raises:
        UnavailableError: another process is saving to it or restoring from it.
        FailedPreconditionError: it holds a snapshot of a higher generation.
    """
    local = local_path(path)
    return _RemoteDestination(str(path), generation) if local is None else _LocalDestination(local, generation)


def open_source(path: SnapshotPath) -> SnapshotSource:
    """Opens the snapshot at a path.

    Raises:
        NotFoundError: there is none.
        DataLossError: its manifest is damaged.
    """
    local = local_path(path)
    return _RemoteSource(str(path)) if local is None else _LocalSource(local)


@contextmanager
def writing_folder(path: SnapshotPath) -> Iterator[Path]:
    """Yields a local folder to write into: the path itself, or a temporary one whose files are copied there later."""
    local = local_path(path)
    if local is not None:
        yield local
        return
    remote = _Remote(str(path))
    with tempfile.TemporaryDirectory(prefix="monolith-snapshot-") as temporary:
        yield Path(temporary)
        with remote.errors(f"folder '{path}': cannot be written"):
            remote.filesystem.makedirs(remote.root, exist_ok=True)
            for file in sorted(Path(temporary).iterdir()):
                remote.filesystem.put_file(str(file), remote.place(file.name))


def remove_written(path: SnapshotPath, files: Iterable[FileEntry]) -> None:
    """Removes files that no manifest will list. Ignores errors: unlisted files do no harm."""
    local = local_path(path)
    if local is not None:
        return remove_files(local, files)
    remote = _Remote(str(path))
    for file in files:
        with suppress(OSError):
            remote.filesystem.rm_file(remote.place(file.name))
    return None


@contextmanager
def fetched_files(path: SnapshotPath, files: Iterable[FileEntry]) -> Iterator[list[Path]]:
    """Yields local paths of some files of a snapshot; remote files are copied, and the copies removed at the end.

    Raises:
        NotFoundError: a remote file is missing; a local one shows when it is read.
    """
    local = local_path(path)
    if local is not None:
        yield [local / file.name for file in files]
        return
    remote = _Remote(str(path))
    with tempfile.TemporaryDirectory(prefix="monolith-snapshot-") as temporary:
        yield [remote.fetch(file.name, Path(temporary)) for file in files]


class _LocalDestination:
    def __init__(self, folder: Path, generation: int) -> None:
        self._folder = folder
        make_folder(folder)
        self._lock = FolderLock(folder, exclusive=True)
        try:
            refuse_newer_generation(folder, generation)
        except BaseException:
            self.close()
            raise

    def publish(self, manifest: SnapshotManifest) -> None:
        commit(self._folder, manifest)
        remove_unlisted(self._folder, manifest)

    def close(self) -> None:
        self._lock.release()


class _LocalSource:
    def __init__(self, folder: Path) -> None:
        self._lock = FolderLock(folder, exclusive=False)
        try:
            self.manifest = read_manifest(folder)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._lock.release()


class _Remote:
    """A folder of another file system."""

    def __init__(self, path: str) -> None:
        self.path = path
        filesystem, root = fsspec.core.url_to_fs(path)
        self.filesystem: Any = filesystem
        self.root = root.rstrip("/")

    def place(self, name: str) -> str:
        return f"{self.root}/{name}"

    def manifest(self) -> SnapshotManifest:
        origin = f"file '{self.path}/{MANIFEST_NAME}'"
        with self.errors(f"{origin}: cannot be read"):
            try:
                text = self.filesystem.cat_file(self.place(MANIFEST_NAME))
            except FileNotFoundError as error:
                raise NotFoundError(f"folder '{self.path}': no snapshot here ({MANIFEST_NAME} is missing)") from error
        return SnapshotManifest.from_bytes(text, origin=origin)

    def fetch(self, name: str, folder: Path) -> Path:
        with self.errors(f"file '{self.path}/{name}': cannot be read"):
            try:
                self.filesystem.get_file(self.place(name), str(folder / name))
            except FileNotFoundError as error:
                raise NotFoundError(f"file '{self.path}/{name}': is missing") from error
        return folder / name

    @contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FileUnavailableError(f"{doing}: {error}") from error


class _RemoteDestination:
    def __init__(self, path: str, generation: int) -> None:
        self._remote = _Remote(path)
        try:
            present = self._remote.manifest()
        except (NotFoundError, DataLossError):  # nothing to replace, or nothing that could be restored
            pass
        else:
            require_generation(present, generation, place=f"folder '{path}'")

    def publish(self, manifest: SnapshotManifest) -> None:
        remote = self._remote
        with remote.errors(f"folder '{remote.path}': cannot be written"):
            remote.filesystem.pipe_file(remote.place(MANIFEST_NAME), manifest.to_bytes())
            names = [entry.rstrip("/").rpartition("/")[2] for entry in remote.filesystem.ls(remote.root, detail=False)]
            for name in unlisted(names, manifest):
                remote.filesystem.rm_file(remote.place(name))

    def close(self) -> None:
        pass


class _RemoteSource:
    def __init__(self, path: str) -> None:
        self.manifest = _Remote(path).manifest()

    def close(self) -> None:
        pass
