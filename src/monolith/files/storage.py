"""Storage: a folder of files, on this machine or on any other fsspec file system.

**Complete or not at all.** `replace`, `put`, `begin` and `create` write a file as ``<name>.<8 hex digits>.tmp`` in the
same folder, and rename it: a reader sees the old file or the new one, and after an error or a crash the old one stays.
A temporary file is locked while it is written, so `remove_abandoned` finds those of killed processes. `write` is for
files that no reader opens until something else names them, such as a manifest.

**Durable.** On this machine bytes are synced before a file gets its name, and the folder after it: what these methods
and `make` made survives a power loss once they have returned. `write` syncs the bytes only; a `sync` after the last of
several files makes their names durable. A removal may be undone by a power loss.

**Other file systems.** A file is durable once its write has returned, and `sync` does nothing. An object store
replaces an object by one put, so no temporary object is made. A file system with a rename of its own, such as SFTP or
HDFS, gets a temporary file; if it cannot rename over a file, there is none for a short time. There are no locks.

**A replaced writer.** A writer that must be the only one takes a lock where there are locks. In addition, and
where there are none, it claims a generation above all others and checks before each commit that no higher one was
claimed (`monolith.checkpoint.GenerationClaim`): the check and the commit are two steps, so a commit that is already in
progress is not stopped.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import fsspec
import numpy as np
from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractFileSystem

from monolith import _core
from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError, OpError
from monolith.files.local_files import FileLock, named_errors, read_regular_file, try_lock
from monolith.files.paths import basename, dirname, join, local_path, refuse_special_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

StoragePath = str | os.PathLike[str]

PIECE_BYTES = 4 << 20
"""Bytes read, written and summed at a time."""
_SMALL_BYTES = 1 << 30
"""Largest local file that `read` accepts by default: manifests, states and marks."""
_READING_THREADS = min(8, 2 * (os.cpu_count() or 1))
"""While one thread waits for the disk, another sums."""


class Storage(Protocol):
    """A folder with files; names may have a slash for files in folders below."""

    path: str
    """Path as the user gave it."""

    def place(self, name: str) -> str:
        """Returns the full path of a name."""

    def below(self, name: str) -> Storage:
        """Returns the folder of this name."""

    def is_there(self) -> bool:
        """Returns whether the folder itself exists; on an object store: whether anything is in it."""

    def names(self) -> list[str]:
        """Returns files and folders directly in it, sorted; none if the folder does not exist."""

    def exists(self, name: str) -> bool:
        """Returns whether there is a file or folder of this name."""

    def size(self, name: str) -> int:
        """Returns the bytes of a file."""

    def read(self, name: str, *, most_bytes: int | None = None) -> bytes:
        """Reads a small file in full.

        Raises:
            NotFoundError: there is no such file.
            DataLossError: it is larger than `most_bytes`; on this machine by default than 1 GiB.
        """

    def read_start(self, name: str, count: int) -> bytes:
        """Reads the first bytes of a file.

        Raises:
            NotFoundError: there is no such file.
        """

    def read_summed(self, name: str, target: NDArray[np.uint8]) -> list[int]:
        """Fills the array from the start of a file; returns the CRC-32C of each `PIECE_BYTES`, the last may be short.

        Raises:
            DataLossError: the file ends early.
        """

    def write(self, name: str, pieces: Iterable[memoryview | bytes], *, past_cache: bool = False) -> None:
        """Writes a file of these bytes. Readers may see it before it is complete.

        Args:
            name: Name of the file.
            pieces: Its bytes.
            past_cache: Bypass the page cache, whose upkeep takes processor time from concurrent work.
        """

    def replace(self, name: str, data: bytes) -> None:
        """Creates or replaces a file: a reader sees all of the old one or all of the new one."""

    def put(self, name: str, source: Path) -> None:
        """Creates or replaces a file by a copy of a local one, like `replace`."""

    def begin(self, name: str) -> NewFile:
        """Returns a file to be written piece by piece, which takes effect when it is committed, like `replace`."""

    def create(self, name: str, data: bytes) -> bool:
        """Creates a file unless there is one; returns whether it did. Of several processes one does."""

    @property
    def creates_exclusively(self) -> bool:
        """Whether `create` is one step: some drivers of fsspec check and then write."""

    def remove(self, name: str) -> None:
        """Removes a file, or a folder with everything in it. Does nothing if there is none."""

    def remove_abandoned(self) -> None:
        """Removes temporary files of killed processes; never those of a running one."""

    def make(self) -> None:
        """Creates the folder, with its parents."""

    def sync(self) -> None:
        """Makes the names in the folder durable."""

    def lock(self, name: str = "", *, shared: bool = False) -> FileLock | None:
        """Locks a file, which is created, or without a name the folder itself; does not wait.

        Returns:
            The lock, which is not held where the file system has no locks; None: another process has it.
        """


class NewFile(Protocol):
    """A file that appears when it is committed, or not at all. A context manager, which discards it unless committed.

    Its methods raise OSError.
    """

    def write(self, data: bytes | memoryview, /) -> object:
        """Appends bytes."""

    def commit(self) -> None:
        """Gives the file its name, durably."""

    def discard(self) -> None:
        """Removes what was written, unless it was committed. Idempotent."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def open_storage(path: StoragePath) -> Storage:
    """Returns the folder at a path or URL; nothing is created."""
    text = os.fspath(path)
    if not text:
        raise InvalidArgumentError("model directory: expected a path, got an empty text")
    local = local_path(text)
    return RemoteStorage(text) if local is None else LocalStorage(local)


def storage_of(path: StoragePath) -> tuple[Storage, str]:
    """Returns the folder of a file, and the file's name in it."""
    text = os.fspath(path)
    return open_storage(dirname(text) or "."), basename(text)


def may_hold(storage: Storage, name: str, data: bytes) -> bool:
    """Returns whether a file may have these bytes; an error or interrupt of `replace` leaves that open."""
    try:
        return storage.read(name) == data
    except NotFoundError:
        return False
    except OpError:
        return True


class LocalStorage:
    """A folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder)
        self._folder = folder

    def place(self, name: str) -> str:
        """Returns the full path of a name."""
        return str(self._folder / name)

    def below(self, name: str) -> LocalStorage:
        """Returns the folder of this name."""
        return LocalStorage(self._folder / name)

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

    def read(self, name: str, *, most_bytes: int | None = None) -> bytes:
        """Reads a small file in full."""
        with named_errors(self.place(name), "read"):
            return read_regular_file(self.place(name), most_bytes=_SMALL_BYTES if most_bytes is None else most_bytes)

    def read_start(self, name: str, count: int) -> bytes:
        """Reads the first bytes of a file."""
        with named_errors(self.place(name), "read"), (self._folder / name).open("rb") as file:
            return file.read(count)

    def read_summed(self, name: str, target: NDArray[np.uint8]) -> list[int]:
        """Fills the array by several threads."""
        return _core.read_summed(self.place(name), target, piece_bytes=PIECE_BYTES, threads=_READING_THREADS)

    def write(self, name: str, pieces: Iterable[memoryview | bytes], *, past_cache: bool = False) -> None:
        """Writes a file and syncs its bytes."""
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
        with named_errors(self.place(name), "written"), TemporaryFile(self, name) as temporary:
            self.write(temporary.name, [data])
            temporary.commit(is_synced=True)

    def put(self, name: str, source: Path) -> None:
        """Writes a temporary file, syncs it, renames it over the old one, syncs the folder."""
        with named_errors(self.place(name), "written"), TemporaryFile(self, name) as temporary:
            self.write(temporary.name, _pieces_of(source))
            temporary.commit(is_synced=True)

    def begin(self, name: str) -> TemporaryFile:
        """Returns a temporary file."""
        return TemporaryFile(self, name)

    def create(self, name: str, data: bytes) -> bool:
        """Writes a temporary file, syncs it, gives it a second name by a link, syncs the folder."""
        with named_errors(self.place(name), "written"), TemporaryFile(self, name) as temporary:
            self.write(temporary.name, [data])
            try:
                os.link(temporary.path, self._folder / name)
            except FileExistsError:
                return False
        self.folder_of(name).sync()
        return True

    @property
    def creates_exclusively(self) -> bool:
        """Always: a link fails if its name exists."""
        return True

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
                if try_lock(file.fileno()):
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

    def lock(self, name: str = "", *, shared: bool = False) -> FileLock | None:
        """Locks a file or the folder."""
        return FileLock.take(self.place(name), os.O_RDWR | os.O_CREAT if name else _FOLDER, shared=shared)

    def folder_of(self, name: str) -> LocalStorage:
        """Returns the folder that a file lies in."""
        return self.below(dirname(name)) if "/" in name else self


class RemoteStorage:
    """A folder of another file system, such as an object store: no lock, no sync."""

    def __init__(self, path: str) -> None:
        self.path = path if path.endswith("://") else path.rstrip("/")
        filesystem, root = fsspec.core.url_to_fs(path)
        self._filesystem: Any = filesystem
        self._root = root.rstrip("/")

    def place(self, name: str) -> str:
        """Returns the full URL of a name."""
        return join(self.path, name)

    def below(self, name: str) -> RemoteStorage:
        """Returns the folder of this name."""
        return RemoteStorage(self.place(name))

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
            except (FileNotFoundError, NotADirectoryError):
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

    def read(self, name: str, *, most_bytes: int | None = None) -> bytes:
        """Reads a small file in full."""
        with named_errors(self.place(name), "read"):
            # Without a limit no range is requested: some object stores have none of an empty object.
            limit = {} if most_bytes is None else {"end": most_bytes + 1}
            data = bytes(self._filesystem.cat_file(self._at(name), **limit))
        if most_bytes is not None and len(data) > most_bytes:
            raise DataLossError(f"file '{self.place(name)}': more than the {most_bytes} bytes expected at most")
        return data

    def read_start(self, name: str, count: int) -> bytes:
        """Reads the first bytes of a file."""
        with named_errors(self.place(name), "read"):
            return bytes(self._filesystem.cat_file(self._at(name), 0, count))

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
        """Replaces a file by one put, or by a rename."""
        with named_errors(self.place(name), "written"), _Upload(self._filesystem, self._at(name)) as upload:
            self._filesystem.pipe_file(upload.path, data)
            upload.commit()

    def put(self, name: str, source: Path) -> None:
        """Replaces a file by one upload, or by a rename."""
        with named_errors(self.place(name), "written"), _Upload(self._filesystem, self._at(name)) as upload:
            self._filesystem.put_file(str(source), upload.path)
            upload.commit()

    def fetch(self, name: str, target: Path) -> None:
        """Copies a file to this machine.

        Raises:
            NotFoundError: there is no such file.
        """
        with named_errors(self.place(name), "read"):
            try:
                self._filesystem.get_file(self._at(name), str(target))
            except FileNotFoundError as error:
                raise NotFoundError(f"file '{self.place(name)}': is missing") from error

    def begin(self, name: str) -> _Upload:
        """Returns an upload."""
        upload = _Upload(self._filesystem, self._at(name))
        upload.write(b"")
        return upload

    def create(self, name: str, data: bytes) -> bool:
        """Creates an object by one put that fails if it exists; see `creates_exclusively`."""
        with named_errors(self.place(name), "written"):
            try:
                self._filesystem.pipe_file(self._at(name), data, mode="create")
            except FileExistsError:
                return False
        return True

    @property
    def creates_exclusively(self) -> bool:
        """Whether the driver has its own way to create an object, instead of the fallback of fsspec."""
        makers = (getattr(type(self._filesystem), name, None) for name in ("pipe_file", "_pipe_file"))
        base = (AbstractFileSystem.pipe_file, AsyncFileSystem._pipe_file, AsyncFileSystem.pipe_file)  # noqa: SLF001 - what drivers replace
        return any(maker is not None and maker not in base for maker in makers)

    def remove(self, name: str) -> None:
        """Removes a file or everything below a name."""
        with named_errors(self.place(name), "removed"), suppress(FileNotFoundError):
            self._filesystem.rm(self._at(name), recursive=True)

    def remove_abandoned(self) -> None:
        """Does nothing: without locks, the temporary files of dead and of running processes look the same."""

    def make(self) -> None:
        """Creates the folder, where file systems have folders."""
        with named_errors(self.path, "created"):
            self._filesystem.makedirs(self._root, exist_ok=True)

    def sync(self) -> None:
        """Does nothing: a write that returned is durable."""

    def lock(self, name: str = "", *, shared: bool = False) -> FileLock:  # noqa: ARG002 - there are no locks
        """Returns a lock that is not held."""
        return FileLock(self.place(name), -1)

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"


class _Upload:
    """A file in flight to another file system: an object, or a temporary file where files can be renamed.

    What is written piece by piece is gathered on this machine, so that an upload that fails or stops has no effect.
    """

    def __init__(self, filesystem: Any, path: str) -> None:
        self._filesystem = filesystem
        self._target = path
        self.path = path if type(filesystem).mv is AbstractFileSystem.mv else _temporary_name(path)
        self._gathered: Any = None
        self._is_over = False

    def write(self, data: bytes | memoryview) -> None:
        if self._gathered is None:
            self._gathered = tempfile.NamedTemporaryFile(prefix="monolith-upload-")  # noqa: SIM115 - closed at the end
        self._gathered.write(data)

    def commit(self) -> None:
        if self._gathered is not None:
            self._gathered.flush()
            self._filesystem.put_file(self._gathered.name, self.path)
        if self.path != self._target:
            try:
                self._filesystem.mv(self.path, self._target)
            except OSError:  # HDFS does not rename over a file
                if not self._filesystem.exists(self._target):
                    raise
                self._filesystem.rm_file(self._target)
                self._filesystem.mv(self.path, self._target)
        self._is_over = True
        self._release()

    def discard(self) -> None:
        self._release()
        if not self._is_over and self.path != self._target:
            with suppress(OSError):  # the error that led here matters more
                self._filesystem.rm_file(self.path)
        self._is_over = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def _release(self) -> None:
        if self._gathered is not None:
            self._gathered.close()
            self._gathered = None


class TemporaryFile:
    """A `NewFile` of this machine, locked until its end; something else may write to its path instead.

    Raises:
        OSError: it cannot be created.
    """

    def __init__(self, storage: LocalStorage, name: str) -> None:
        self._storage = storage
        self._target = name
        while True:
            self.name = _temporary_name(name)
            self.path = Path(storage.place(self.name))
            self._file = self.path.open("xb")
            if self._is_locked():
                return
            self._file.close()

    name: str
    """Its name in the folder."""
    path: Path

    def write(self, data: bytes | memoryview) -> None:
        """Appends bytes."""
        self._file.write(data)

    def commit(self, *, is_synced: bool = False) -> None:
        """Syncs the file unless that is done, renames it over its target, syncs the folder."""
        if not is_synced:
            self._file.flush()
            with self.path.open("rb") as written:
                os.fsync(written.fileno())
        self.path.replace(self._storage.place(self._target))
        self._file.close()
        self._storage.folder_of(self._target).sync()

    def discard(self) -> None:
        """Removes the file."""
        if self._file.closed:
            return
        try:
            with suppress(OSError):  # it writes what is left in its buffer
                self._file.close()
        finally:
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object = None, *_: object) -> None:
        try:
            self.discard()
        except OSError:
            if kind is None:  # else the error that led here matters more
                raise

    def _is_locked(self) -> bool:
        """Returns whether the lock is ours and the file there: a concurrent `remove_abandoned` may be faster."""
        try:
            found = try_lock(self._file.fileno())
        except OSError:  # no locks here, so `remove_abandoned` removes nothing
            found = None
        return found is None or (found and os.fstat(self._file.fileno()).st_nlink > 0)


def begin_file(path: StoragePath) -> TemporaryFile:
    """Returns a temporary file for a local path, which something else fills.

    Raises:
        InvalidArgumentError: the path is a URL, a folder, a device, a pipe or a socket.
        NotFoundError: there is no such folder.
        OpError: the folder cannot be written to.
    """
    name = os.fspath(path)
    if "://" in name:
        raise InvalidArgumentError(f"file '{name}': a local path is needed, got a URL; write a local file and copy it")
    refuse_special_file(name)
    target = Path(name)
    if target.is_dir():
        raise InvalidArgumentError(f"file '{name}': it is a folder; give the name of a file in it")
    if not target.parent.is_dir():
        raise NotFoundError(f"'{name}': cannot be written: there is no folder '{target.parent}'")
    with named_errors(name, "written"):
        return TemporaryFile(LocalStorage(target.parent), target.name)


@contextmanager
def replaced_file(path: StoragePath) -> Iterator[Path]:
    """Yields a temporary file in the folder of `path`; at the end it replaces `path`, durably; an error removes it.

    Raises:
        InvalidArgumentError: the path is a URL, a folder, a device, a pipe or a socket.
        NotFoundError: there is no such folder.
        OpError: the file cannot replace `path`; no temporary file remains, and `path` is unchanged.
    """
    with begin_file(path) as temporary:
        yield temporary.path
        with named_errors(os.fspath(path), "written"):
            temporary.commit()


_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_TEMPORARY = re.compile(r".+\.[0-9a-f]{8}\.tmp")
"""Names that `_temporary_name` returns."""


def _temporary_name(name: str) -> str:
    return f"{name}.{secrets.token_hex(4)}.tmp"


def _pieces_of(path: Path) -> Iterator[bytes]:
    with named_errors(str(path), "read"), path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


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
    descriptor = os.open(folder, _FOLDER | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems cannot sync a folder: they order renames themselves
            raise
    finally:
        os.close(descriptor)
