"""A file of any storage appears whole or not at all, and a lock keeps others out."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from monolith.errors import DataLossError, FailedPreconditionError, InvalidArgumentError, NotFoundError, OpError
from monolith.files import (
    FileLock,
    LocalStorage,
    RemoteStorage,
    Storage,
    open_storage,
    replaced_file,
    storage_of,
    text_files,
)
from monolith.files.local_files import try_lock


class RenamingFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """A file system that renames, but like HDFS not over a file, and whose next few operations fail."""

    protocol = "renaming"
    store: dict[str, Any] = {}  # noqa: RUF012 - shared by instances, as in its base
    pseudo_dirs = [""]  # noqa: RUF012 - as above
    failures: list[BaseException] = []  # noqa: RUF012 - as above
    renamed: list[str] = []  # noqa: RUF012 - as above

    @classmethod
    def _strip_protocol(cls, path: str) -> Any:
        return super()._strip_protocol(path.replace("renaming://", "memory://"))

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        if self.failures:
            raise self.failures.pop()
        if self.exists(path2):
            raise OSError(errno.EEXIST, "the target exists")
        self.renamed.append(path1)
        super().mv(path1, path2, **options)


@pytest.fixture
def renaming() -> Iterator[RenamingFileSystem]:
    fsspec.register_implementation("renaming", RenamingFileSystem, clobber=True)
    files = fsspec.filesystem("renaming")
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]
    files.failures.clear()
    files.renamed.clear()


@pytest.fixture(params=["local", "memory://storage/test", "renaming://storage/test"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, renaming: RenamingFileSystem) -> Iterator[Storage]:
    del renaming
    path = str(tmp_path / "test") if request.param == "local" else request.param
    storage = open_storage(path)
    storage.make()
    yield storage
    open_storage(path.rpartition("/")[0]).remove("test")


Write = Callable[[Storage, str, bytes], object]


def begun(storage: Storage, name: str, data: bytes) -> None:
    with storage.begin(name) as file:
        file.write(data[:2])
        file.write(memoryview(data[2:]))
        file.commit()


def put(storage: Storage, name: str, data: bytes) -> None:
    with tempfile.NamedTemporaryFile() as source:
        source.write(data)
        source.flush()
        storage.put(name, Path(source.name))


WHOLE: dict[str, Write] = {
    "replace": lambda storage, name, data: storage.replace(name, data),
    "put": put,
    "begin": begun,
}


@pytest.fixture(params=WHOLE)
def write(request: pytest.FixtureRequest) -> Write:
    return WHOLE[request.param]


def test_a_file_is_written_replaced_read_and_removed(storage: Storage, write: Write) -> None:
    assert not storage.exists("a")
    write(storage, "a", b"first")
    write(storage, "a", b"second, and longer")
    assert (storage.read("a"), storage.size("a"), storage.names()) == (b"second, and longer", 18, ["a"])
    storage.remove("a")
    storage.remove("a")
    with pytest.raises(NotFoundError, match=r"test/a'"):
        storage.read("a")


def test_a_file_below_is_reached_by_its_folder_and_by_a_name_with_a_slash(storage: Storage) -> None:
    below = storage.below("sub")
    below.make()
    storage.replace("sub/file", b"x")
    assert (below.read("file"), storage.names(), below.names()) == (b"x", ["sub"], ["file"])
    assert storage.place("sub/file") == below.place("file")
    assert storage.is_there()
    storage.remove("sub")
    assert storage.names() == []


def test_a_file_that_is_too_large_is_not_read(storage: Storage) -> None:
    storage.replace("file", b"12345")
    assert storage.read("file", most_bytes=5) == b"12345"
    with pytest.raises(DataLossError, match="at most"):
        storage.read("file", most_bytes=4)


def test_the_first_bytes_of_a_file_are_read_up_to_its_end(storage: Storage) -> None:
    storage.replace("file", b"12345")
    assert [storage.read_start("file", count) for count in (2, 5, 9)] == [b"12", b"12345", b"12345"]
    with pytest.raises(NotFoundError, match="missing"):
        storage.read_start("missing", 2)


def test_a_file_of_another_machine_is_copied_to_this_one(renaming: RenamingFileSystem, tmp_path: Path) -> None:
    storage = RemoteStorage("renaming://storage")
    renaming.pipe_file("/storage/file", b"12345")
    storage.fetch("file", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"12345"
    with pytest.raises(NotFoundError, match=r"file 'renaming://storage/other': is missing"):
        storage.fetch("other", tmp_path / "copy")


def test_a_lock_file_can_be_read_by_others_and_written_by_its_owner(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        lock = LocalStorage(tmp_path).lock("file.lock")
    finally:
        os.umask(mask)
    assert lock is not None
    assert stat.S_IMODE((tmp_path / "file.lock").stat().st_mode) == 0o644
    lock.release()


def test_of_two_that_create_a_file_one_does(storage: Storage) -> None:
    assert storage.create("file", b"one")
    assert not storage.create("file", b"other")
    assert (storage.read("file"), storage.names()) == (b"one", ["file"])


def test_a_file_that_is_not_committed_was_never_there(storage: Storage) -> None:
    storage.replace("file", b"old")
    with pytest.raises(ArithmeticError), storage.begin("file") as file:  # noqa: PT012 - what was half written
        file.write(b"half")
        raise ArithmeticError
    del file
    assert (storage.read("file"), storage.names()) == (b"old", ["file"])


def test_text_files_are_storage(storage: Storage) -> None:
    path = storage.place("new/folder/file")
    assert text_files.read_text(path) is None
    text_files.write_text(path, "text")
    assert text_files.read_text(path) == "text"
    assert text_files.names_in(storage.place("new/folder")) == ["file"]
    text_files.remove(path)
    assert text_files.names_in(storage.place("new/folder")) == []
    folder, name = storage_of(path)
    assert (folder.path, name) == (storage.place("new/folder"), "file")


@pytest.mark.parametrize("failure", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()])
def test_an_error_anywhere_keeps_the_old_file_and_nothing_else(
    tmp_path: Path,
    write: Write,
    monkeypatch: pytest.MonkeyPatch,
    failure: BaseException,
) -> None:
    storage = LocalStorage(tmp_path / "test")
    storage.make()
    storage.replace("file", b"old")

    def fails(*_: object) -> None:
        raise failure

    for owner, name in ((os, "fsync"), (Path, "replace")):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, fails)
            with pytest.raises((OpError, OSError, KeyboardInterrupt)):
                write(storage, "file", b"new")
        assert (storage.read("file"), storage.names()) == (b"old", ["file"])


def test_where_files_are_renamed_no_reader_sees_a_part(renaming: RenamingFileSystem, write: Write) -> None:
    storage = open_storage("renaming://storage/whole")
    storage.make()
    write(storage, "file", b"old")
    write(storage, "file", b"new")
    assert len(renaming.renamed) == 2
    assert all(path.startswith("/storage/whole/file.") and path.endswith(".tmp") for path in renaming.renamed)
    storage.remove("file")
    renaming.failures.append(OSError(errno.EIO, "Input/output error"))
    with pytest.raises((OpError, OSError), match="Input/output error"):
        write(storage, "file", b"newer")
    assert storage.names() == []


def test_temporary_files_of_dead_processes_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    (tmp_path / "file.0123abcd.tmp").write_text("half")
    (tmp_path / "theirs.tmp").write_text("of another program")
    storage = LocalStorage(tmp_path)
    with storage.begin("mine") as file:
        storage.remove_abandoned()
        assert [name.partition(".")[0] for name in storage.names()] == ["mine", "theirs"]
        file.commit()
    assert storage.names() == ["mine", "theirs.tmp"]


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InvalidArgumentError, match=r"Parent directory of .* doesn't exist"):
            open_storage(folder).make()
    with pytest.raises(InvalidArgumentError, match="empty text"):
        open_storage("")


class TestReplacedFile:
    """A file that something else writes, such as a Parquet library."""

    def test_the_old_file_stays_until_the_new_one_is_complete(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_text("old")
        with replaced_file(path) as temporary:
            temporary.write_text("new")
            assert path.read_text() == "old"
        assert path.read_text() == "new"
        assert list(tmp_path.iterdir()) == [path]

    def test_an_error_keeps_the_existing_file_and_nothing_else(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_text("old")
        with pytest.raises(ArithmeticError), replaced_file(path) as temporary:  # noqa: PT012 - what was half written
            temporary.write_text("half")
            raise ArithmeticError
        assert path.read_text() == "old"
        assert list(tmp_path.iterdir()) == [path]

    def test_what_cannot_be_replaced_is_refused_before_anything_is_written(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        for path, why in ((tmp_path, "is a folder"), (tmp_path / "pipe", "a pipe"), ("s3://bucket/file", "local path")):
            with pytest.raises(InvalidArgumentError, match=why), replaced_file(path):
                pytest.fail("not reached")

    def test_a_folder_that_is_missing_is_named(self, tmp_path: Path) -> None:
        with (
            pytest.raises(NotFoundError, match=r"missing/file': cannot be written: there is no folder '.*missing'"),
            replaced_file(tmp_path / "missing" / "file"),
        ):
            pytest.fail("not reached")

    def test_the_mode_is_that_of_a_new_file(self, tmp_path: Path) -> None:
        mask = os.umask(0o027)
        try:
            with replaced_file(tmp_path / "file") as temporary:
                temporary.write_text("text")
        finally:
            os.umask(mask)
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


class TestLocks:
    """Locks on this machine."""

    @pytest.mark.parametrize("name", ["", "file.lock"])
    def test_a_lock_keeps_others_out_until_its_release(self, tmp_path: Path, name: str) -> None:
        storage = LocalStorage(tmp_path)
        first = storage.lock(name)
        assert first is not None
        assert first.require_held().is_held
        assert storage.lock(name) is None
        assert storage.lock(name, shared=True) is None
        first.release()
        first.release()
        assert not first.is_held
        with storage.lock(name, shared=True) as one, storage.lock(name, shared=True) as two:  # type: ignore[union-attr]
            assert one.is_held
            assert two.is_held
            assert storage.lock(name) is None
        with storage.lock(name) as again:  # type: ignore[union-attr]
            assert again.is_held

    def test_a_forked_child_does_not_keep_a_lock(self, tmp_path: Path) -> None:
        storage = LocalStorage(tmp_path)
        lock = storage.lock("file")
        assert lock is not None
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writing, b"1" if lock.is_held else b"0")
            signal.pause()
            os._exit(0)
        try:
            assert os.read(reading, 1) == b"0"
            assert storage.lock("file") is None, "the child's end of the lock has not ended it"
            lock.release()
            with storage.lock("file") as again:  # type: ignore[union-attr]
                assert again.is_held
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reading)
            os.close(writing)

    def test_a_release_ends_the_lock_of_a_child_that_was_forked_just_now(self, tmp_path: Path) -> None:
        descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
        assert try_lock(descriptor)
        lock = FileLock("file", descriptor)
        of_child = os.dup(descriptor)
        lock.release()
        again = LocalStorage(tmp_path).lock("file")
        os.close(of_child)
        assert again is not None
        again.release()

    def test_a_process_without_standard_input_can_release_its_locks(self, tmp_path: Path) -> None:
        storage = LocalStorage(tmp_path)
        kept = os.dup(0)
        try:
            os.close(0)  # the next descriptor is 0
            lock = storage.lock("file")
            assert lock is not None
            assert os.path.samestat(os.fstat(0), (tmp_path / "file").stat())
            assert lock.require_held().is_held
            assert storage.lock("file") is None
            lock.release()
            with storage.lock("file") as again:  # type: ignore[union-attr]
                assert again.is_held
        finally:
            os.dup2(kept, 0)
            os.close(kept)

    def test_file_systems_without_locks_are_used_without_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fails(*_: object) -> None:
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

        monkeypatch.setattr(fcntl, "flock", fails)
        storages: tuple[Storage, ...] = (LocalStorage(tmp_path), open_storage("memory://storage/locks"))
        for storage in storages:
            lock = storage.lock("file")
            assert lock is not None
            assert not lock.is_held
            with pytest.raises(FailedPreconditionError, match="/file': its file system has no locks"):
                lock.require_held()
        storages[0].replace("file", b"text")
        (tmp_path / "file.0123abcd.tmp").touch()
        storages[0].remove_abandoned()
        assert storages[0].names() == ["file", "file.0123abcd.tmp"], "it may be of a running process"
