"""All input and output of this package: a model directory, on this machine or on any other fsspec file system.

Nothing else in the package opens a file, so a test can substitute a folder that fails where it wants. On the local
file system everything is durable when a call returns; on others a file exists when its one write has ended.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

import fsspec
import numpy as np

from monolith import _core
from monolith.errors import DataLossError, InvalidArgumentError
from monolith.files import local_path, named_errors, read_regular_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

FolderPath = str | os.PathLike[str]


class Folder(Protocol):
    """A folder with files; names may have a slash for files in folders below."""

    path: str
    """Path as the user gave it."""

    def place(self, name: str) -> str:
        """Returns the full path of a name."""
        ...

    def is_there(self) -> bool:
        """Returns whether the folder itself exists; on an object store: whether anything is in it."""
        ...

    def names(self) -> list[str]:
        """Returns files and folders directly in it, sorted; none if the folder does not exist."""
        ...

    def exists(self, name: str) -> bool:
        """Returns whether there is a file or folder of this name."""
        ...

    def size(self, name: str) -> int:
        """Returns the bytes of a file."""
        ...

    def read(self, name: str) -> bytes:
        """Reads a small file in full."""
        ...

    def read_summed(self, name: str, target: NDArray[np.uint8]) -> list[int]:
        """Fills the array from the start of a file; returns the CRC-32C of each `PIECE_BYTES`, the last may be short.

        Raises:
            DataLossError: the file ends early.
        """
        ...

    def write(self, name: str, pieces: Iterable[memoryview | bytes], *, past_cache: bool = False) -> None:
        """Writes a file of these bytes. Readers may see it before it is complete.

        Args:
            name: Name of the file.
            pieces: Its bytes.
            past_cache: Bypass the page cache, whose upkeep takes processor time from concurrent work.
        """
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Creates or replaces a file: a reader sees all of the old one or all of the new one."""
        ...

    def remove(self, name: str) -> None:
        """Removes a file, or a folder with everything in it. Does nothing if there is none."""
        ...

    def remove_abandoned(self) -> None:
        """Removes temporary files of a `replace` whose process was killed; never those of a running one."""
        ...

    def make(self) -> None:
        """Creates the folder, with its parents."""
        ...

    def sync(self) -> None:
        """Makes the names in the folder durable."""
        ...


def open_folder(path: FolderPath) -> Folder:
    """Returns the folder at a path or URL; nothing is created."""
    text = os.fspath(path)
    if not text:
        raise InvalidArgumentError("model directory: expected a path, got an empty text")
    local = local_path(text)
    return RemoteFolder(text) if local is None else LocalFolder(local)


class LocalFolder:
    """A folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder)
        self._folder = folder

    def place(self, name: str) -> str:
        """Returns the full path of a name."""
        return str(self._folder / name)

    def is_there(self) -> bool:
        """Returns whether the folder itself exists."""
        with named_errors(self.path, "read"):
            return self._folder.is_dir()

    def names(self) -> list[str]:
        """Returns files and folders directly in it."""
        with named_errors(self.path, "listed"):
            try:
                return sorted(entry.name for entry in os.scandir(self._folder))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def exists(self, name: str) -> bool:
        """Returns whether there is such a file or folder."""
        with named_errors(self.place(name), "read"):
            return (self._folder / name).exists()

    def size(self, name: str) -> int:
        """Returns the bytes of a file."""
        with named_errors(self.place(name), "read"):
            return (self._folder / name).stat().st_size

    def read(self, name: str) -> bytes:
        """Reads a small file in full."""
        with named_errors(self.place(name), "read"):
            return read_regular_file(self.place(name), most_bytes=_SMALL_BYTES)

    def read_summed(self, name: str, target: NDArray[np.uint8]) -> list[int]:
        """Fills the array by several threads."""
        return _core.read_summed(self.place(name), target, piece_bytes=PIECE_BYTES, threads=_READING_THREADS)

    def write(self, name: str, pieces: Iterable[memoryview | bytes], *, past_cache: bool = False) -> None:
        """Writes a file, durably."""
        path = self._folder / name
        if past_cache:
            return _write_past_cache(str(path), pieces)
        with named_errors(self.place(name), "written"):
            try:
                with path.open("wb", buffering=0) as file:
                    for piece in pieces:
                        _write_all(file, piece)
                    os.fsync(file.fileno())
            except BaseException:
                with suppress(OSError):  # the error that led here matters more
                    path.unlink(missing_ok=True)
                raise

    def replace(self, name: str, data: bytes) -> None:
        """Writes a temporary file, syncs it, renames it over the old one, syncs the folder."""
        with named_errors(self.place(name), "written"), _temporary(self._folder, name) as temporary:
            self.write(temporary.name, [data])
            temporary.replace(self._folder / name)
        self.sync()

    def remove(self, name: str) -> None:
        """Removes a file or a folder."""
        path = self._folder / name
        with named_errors(self.place(name), "removed"):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def remove_abandoned(self) -> None:
        """Removes temporary files that no process holds; where files cannot be locked, none is touched."""
        for name in filter(_TEMPORARY.fullmatch, self.names()):
            with suppress(OSError), (self._folder / name).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                (self._folder / name).unlink()

    def make(self) -> None:
        """Creates the folder and its parents, durably."""
        with named_errors(self.path, "created"):
            missing = [path for path in (self._folder, *self._folder.parents) if not path.exists()]
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError) as error:
                # Both a ValueError and an OpError; the text is that of ByteDance Monolith.
                raise InvalidArgumentError(f"Parent directory of {self.path} doesn't exist, can't save.") from error
            for path in missing:
                _sync_folder(path.parent)

    def sync(self) -> None:
        """Makes the names in it durable."""
        with named_errors(self.path, "synced"):
            _sync_folder(self._folder)


class RemoteFolder:
    """A folder of another file system, such as an object store: no rename, no lock, no sync, one write per file."""

    def __init__(self, path: str) -> None:
        self.path = path.rstrip("/")
        filesystem, root = fsspec.core.url_to_fs(path)
        self._filesystem: Any = filesystem
        self._root = root.rstrip("/")

    def place(self, name: str) -> str:
        """Returns the full URL of a name."""
        return f"{self.path}/{name}"

    def is_there(self) -> bool:
        """Returns whether anything is in it."""
        self._filesystem.invalidate_cache()
        with named_errors(self.path, "read"):
            return bool(self._filesystem.isdir(self._root))

    def names(self) -> list[str]:
        """Returns files and folders directly in it."""
        self._filesystem.invalidate_cache()
        with named_errors(self.path, "listed"):
            try:
                entries = self._filesystem.ls(self._root, detail=False)
            except FileNotFoundError:
                return []
        return sorted({entry.rstrip("/").rpartition("/")[2] for entry in entries} - {""})

    def exists(self, name: str) -> bool:
        """Returns whether there is such a file or folder."""
        self._filesystem.invalidate_cache()
        with named_errors(self.place(name), "read"):
            return bool(self._filesystem.exists(self._at(name)))

    def size(self, name: str) -> int:
        """Returns the bytes of a file."""
        with named_errors(self.place(name), "read"):
            return int(self._filesystem.size(self._at(name)))

    def read(self, name: str) -> bytes:
        """Reads a small file in full."""
        with named_errors(self.place(name), "read"):
            return bytes(self._filesystem.cat_file(self._at(name)))

    def read_summed(self, name: str, target: NDArray[np.uint8]) -> list[int]:
        """Fills the array piece by piece."""
        sums = []
        with named_errors(self.place(name), "read"), self._filesystem.open(self._at(name), "rb") as file:
            for begin in range(0, len(target), PIECE_BYTES):
                piece = target[begin : begin + PIECE_BYTES]
                _read_all(file, piece.data, place=self.place(name))
                sums.append(_core.crc32c_extend(0, piece))
        return sums

    def write(self, name: str, pieces: Iterable[memoryview | bytes], *, past_cache: bool = False) -> None:  # noqa: ARG002 - no cache here
        """Writes a file by one upload."""
        with named_errors(self.place(name), "written"), self._filesystem.open(self._at(name), "wb") as file:
            for piece in pieces:
                file.write(piece)

    def replace(self, name: str, data: bytes) -> None:
        """Replaces a file by one put."""
        with named_errors(self.place(name), "written"):
            self._filesystem.pipe_file(self._at(name), data)

    def remove(self, name: str) -> None:
        """Removes a file or everything below a name."""
        with named_errors(self.place(name), "removed"), suppress(FileNotFoundError):
            self._filesystem.rm(self._at(name), recursive=True)

    def remove_abandoned(self) -> None:
        """Does nothing: a put leaves the complete file, or nothing."""

    def make(self) -> None:
        """Creates the folder, where file systems have folders."""
        with named_errors(self.path, "created"):
            self._filesystem.makedirs(self._root, exist_ok=True)

    def sync(self) -> None:
        """Does nothing: a write that returned is durable."""

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"


PIECE_BYTES = 4 << 20
"""Bytes read, written and summed at a time."""
_SMALL_BYTES = 1 << 30
"""Largest file that `read` accepts: manifests, states and marks."""
_READING_THREADS = min(8, 2 * (os.cpu_count() or 1))
"""While one thread waits for the disk, another sums."""


_TEMPORARY = re.compile(r".+\.[0-9a-f]{8}\.tmp")
"""Names that `_temporary` makes."""


@contextmanager
def _temporary(folder: Path, name: str) -> Iterator[Path]:
    """Yields an empty file of a unique name, locked while it is written: the lock ends with the process."""
    while True:
        path = folder / f"{name}.{secrets.token_hex(4)}.tmp"
        with path.open("xb") as file:
            if not _lock(file):  # removed by a concurrent `remove_abandoned`
                continue
            try:
                yield path
            except BaseException:
                with suppress(OSError):  # the error that led here matters more
                    path.unlink(missing_ok=True)
                raise
            return


def _lock(file: Any) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # no locks here, so `remove_abandoned` removes nothing
        return True
    return os.fstat(file.fileno()).st_nlink > 0


def _read_all(file: Any, buffer: memoryview, *, place: str) -> None:
    while len(buffer):
        count = file.readinto(buffer)
        if not count:
            raise DataLossError(f"file '{place}': it ends {len(buffer)} bytes early (truncated)")
        buffer = buffer[count:]


def _write_past_cache(path: str, pieces: Iterable[memoryview | bytes]) -> None:
    file = _core.OutputFile(path, past_cache=True)
    try:
        for piece in pieces:
            file.append(np.frombuffer(piece, np.uint8))
        file.commit()
    except BaseException:
        file.discard()  # the error's traceback would keep it
        raise


def _write_all(file: Any, piece: memoryview | bytes) -> None:
    rest = memoryview(piece).cast("B")
    while len(rest):
        rest = rest[file.write(rest) :]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
