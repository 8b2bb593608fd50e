"""Where a snapshot goes and comes from: a local folder itself, or a remote one through a temporary local folder.

Files are written and checked by the core, which knows local paths only; other fsspec paths are copied. A remote
manifest is written last and by one call, so that an object store shows either the old snapshot or the new one.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import fsspec

from monolith.errors import DataLossError, NotFoundError, UnavailableError
from monolith.tables.snapshot.files import (
    FolderLock,
    commit,
    make_folder,
    refuse_newer_generation,
    remove_unlisted,
    require_generation,
    unlisted,
)
from monolith.tables.snapshot.manifest import MANIFEST_NAME, Manifest, read_manifest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from monolith.tables.snapshot.manifest import FileEntry

SnapshotPath = str | os.PathLike[str]


class Destination(Protocol):
    """Where the files of one save are written and then published."""

    folder: Path
    """Local folder for the bucket files."""

    def publish(self, manifest: Manifest) -> None:
        """Makes the files in `folder` and the manifest the snapshot of the path; removes what it replaces."""

    def close(self) -> None:
        """Gives up the lock and temporary files. Calling it again does nothing."""


class Source(Protocol):
    """A snapshot to read."""

    manifest: Manifest

    def fetch(self, files: Iterable[FileEntry]) -> list[Path]:
        """Local paths of these files."""

    def close(self) -> None:
        """Gives up the lock and temporary files. Calling it again does nothing."""


def open_destination(path: SnapshotPath, generation: int) -> Destination:
    """Prepares a path for one save.

    Raises:
        UnavailableError: someone else is saving to it or restoring from it.
        FailedPreconditionError: it holds a snapshot of a higher generation.
    """
    local = local_path(path)
    return _RemoteDestination(str(path), generation) if local is None else _LocalDestination(local, generation)


def open_source(path: SnapshotPath) -> Source:
    """The snapshot at a path.

    Raises:
        NotFoundError: there is none.
        DataLossError: its manifest is damaged.
    """
    local = local_path(path)
    return _RemoteSource(str(path)) if local is None else _LocalSource(local)


def local_path(path: SnapshotPath) -> Path | None:
    """The path in the local file system; None for any other fsspec path."""
    text = os.fspath(path)
    if "://" not in text and "::" not in text:
        return Path(text)
    filesystem, stripped = fsspec.core.url_to_fs(text)
    protocols = filesystem.protocol if isinstance(filesystem.protocol, tuple) else (filesystem.protocol,)
    return Path(stripped) if "file" in protocols else None


class _LocalDestination:
    def __init__(self, folder: Path, generation: int) -> None:
        self.folder = folder
        make_folder(folder)
        self._lock = FolderLock(folder, exclusive=True)
        try:
            refuse_newer_generation(folder, generation)
        except BaseException:
            self.close()
            raise

    def publish(self, manifest: Manifest) -> None:
        commit(self.folder, manifest)
        remove_unlisted(self.folder, manifest)

    def close(self) -> None:
        self._lock.release()


class _LocalSource:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = FolderLock(folder, exclusive=False)
        try:
            self.manifest = read_manifest(folder)
        except BaseException:
            self.close()
            raise

    def fetch(self, files: Iterable[FileEntry]) -> list[Path]:
        return [self._folder / file.name for file in files]

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

    def manifest(self) -> Manifest:
        origin = f"file '{self.path}/{MANIFEST_NAME}'"
        with self.errors(f"{origin}: cannot be read"):
            try:
                text = self.filesystem.cat_file(self.place(MANIFEST_NAME))
            except FileNotFoundError as error:
                raise NotFoundError(f"folder '{self.path}': no snapshot here ({MANIFEST_NAME} is missing)") from error
        return Manifest.from_bytes(text, origin=origin)

    @contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UnavailableError(f"{doing}: {error}") from error


class _RemoteDestination:
    def __init__(self, path: str, generation: int) -> None:
        self._remote = _Remote(path)
        try:
            present = self._remote.manifest()
        except (NotFoundError, DataLossError):  # nothing there, or nothing that could be restored
            pass
        else:
            require_generation(present, generation, place=f"folder '{path}'")
        self._temporary = tempfile.TemporaryDirectory(prefix="monolith-snapshot-")
        self.folder = Path(self._temporary.name)

    def publish(self, manifest: Manifest) -> None:
        remote = self._remote
        with remote.errors(f"folder '{remote.path}': cannot be written"):
            remote.filesystem.makedirs(remote.root, exist_ok=True)
            for file in manifest.files:
                remote.filesystem.put_file(str(self.folder / file.name), remote.place(file.name))
            remote.filesystem.pipe_file(remote.place(MANIFEST_NAME), manifest.to_bytes())
            names = [entry.rstrip("/").rpartition("/")[2] for entry in remote.filesystem.ls(remote.root, detail=False)]
            for name in unlisted(names, manifest):
                remote.filesystem.rm_file(remote.place(name))

    def close(self) -> None:
        self._temporary.cleanup()


class _RemoteSource:
    def __init__(self, path: str) -> None:
        self._remote = _Remote(path)
        self.manifest = self._remote.manifest()
        self._temporary = tempfile.TemporaryDirectory(prefix="monolith-snapshot-")

    def fetch(self, files: Iterable[FileEntry]) -> list[Path]:
        paths = []
        for file in files:
            local = Path(self._temporary.name) / file.name
            with self._remote.errors(f"file '{self._remote.path}/{file.name}': cannot be read"):
                try:
                    self._remote.filesystem.get_file(self._remote.place(file.name), str(local))
                except FileNotFoundError as error:
                    raise NotFoundError(f"file '{self._remote.path}/{file.name}': is missing") from error
            paths.append(local)
        return paths

    def close(self) -> None:
        self._temporary.cleanup()
