"""Copies of files and trees, also when the file system fails now and then."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from monolith.errors import AlreadyExistsError, NotFoundError, UnavailableError
from monolith.files import CopyFile, CopyRecursively
from monolith.testing import FakeClock


class FlakyFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """A remote file system of which the next few calls of `open` fail."""

    protocol = "flaky"
    store: dict[str, Any] = {}  # noqa: RUF012 - shared by instances, as in its base
    failures: list[OSError] = []  # noqa: RUF012 - as above

    @classmethod
    def _strip_protocol(cls, path: str) -> Any:
        return super()._strip_protocol(path.replace("flaky://", "memory://"))

    def _open(self, *args: Any, **kwargs: Any) -> Any:
        if self.failures:
            raise self.failures.pop()
        return super()._open(*args, **kwargs)


@pytest.fixture
def flaky() -> Iterator[FlakyFileSystem]:
    fsspec.register_implementation("flaky", FlakyFileSystem, clobber=True)
    files = fsspec.filesystem("flaky")
    yield files
    files.store.clear()
    files.failures.clear()


@pytest.fixture
def memory() -> Iterator[Any]:
    files = fsspec.filesystem("memory")
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


def make_tree(root: Path) -> dict[str, bytes]:
    """Nested folders with files, one of them large, one empty; and an empty folder."""
    contents = {f"dir{i}/sub{j}/file{k}": f"{i} {j} {k}".encode() for i in range(3) for j in range(2) for k in range(3)}
    contents |= {"top": b"x" * (9 << 20), "dir0/empty": b"", "dir0/ä ö": b"name"}
    for name, content in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (root / "nothing").mkdir()
    return contents


def read_tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("max_workers", [1, 2, 8])
def test_multi_threaded_copy(tmp_path: Path, max_workers: int) -> None:
    contents = make_tree(tmp_path / "src")
    (tmp_path / "dst" / "old").mkdir(parents=True)
    (tmp_path / "dst" / "old" / "file").write_text("goes")
    CopyRecursively(str(tmp_path / "src"), str(tmp_path / "dst"), max_workers=max_workers)
    assert read_tree(tmp_path / "dst") == contents == read_tree(tmp_path / "src")
    assert (tmp_path / "dst" / "nothing").is_dir()


def test_a_tree_goes_to_a_remote_file_system_and_back(tmp_path: Path, memory: Any) -> None:
    contents = make_tree(tmp_path / "src")
    CopyRecursively(str(tmp_path / "src"), "memory://models/copy", max_workers=2)
    CopyRecursively("memory://models/copy/", str(tmp_path / "back"), max_workers=2)
    assert read_tree(tmp_path / "back") == contents


def test_a_copy_of_an_empty_folder_is_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    CopyRecursively(str(tmp_path / "src"), str(tmp_path / "parent" / "dst"))
    assert list((tmp_path / "parent" / "dst").iterdir()) == []


def test_copying_a_missing_tree_is_skipped_or_raises(tmp_path: Path) -> None:
    (tmp_path / "dst").mkdir()
    CopyRecursively(str(tmp_path / "src"), str(tmp_path / "dst"))
    assert (tmp_path / "dst").is_dir()  # nothing was removed
    with pytest.raises(ValueError, match=r"there is no .*src to copy"):
        CopyRecursively(str(tmp_path / "src"), str(tmp_path / "dst"), skip_nonexist=False)
    (tmp_path / "src").write_text("a file")
    with pytest.raises(ValueError, match="is no folder; use CopyFile"):
        CopyRecursively(str(tmp_path / "src"), str(tmp_path / "dst"))


@pytest.mark.parametrize(("src", "dst"), [("a", "a"), ("a/b", "a"), ("a", "a/b"), ("a/", "a/b/c"), ("a/../a", "a")])
def test_a_copy_into_itself_is_refused_before_anything_is_removed(tmp_path: Path, src: str, dst: str) -> None:
    contents = make_tree(tmp_path / "a" / "b")
    with pytest.raises(ValueError, match="lie inside each other"):
        CopyRecursively(f"{tmp_path}/{src}", f"{tmp_path}/{dst}")
    assert read_tree(tmp_path / "a" / "b") == contents


def test_a_neighbour_whose_name_begins_alike_is_no_part(tmp_path: Path) -> None:
    contents = make_tree(tmp_path / "model")
    CopyRecursively(str(tmp_path / "model"), str(tmp_path / "model2"))
    assert read_tree(tmp_path / "model2") == contents


def test_a_file_goes_anywhere_and_folders_are_made(tmp_path: Path, memory: Any) -> None:
    (tmp_path / "src").write_bytes(b"content")
    CopyFile(str(tmp_path / "src"), "memory://new/folder/file")
    CopyFile("memory://new/folder/file", str(tmp_path / "also" / "new" / "file"))
    assert (tmp_path / "also" / "new" / "file").read_bytes() == b"content"
    assert [path.name for path in (tmp_path / "also" / "new").iterdir()] == ["file"]


def test_a_file_is_replaced_only_with_overwrite(tmp_path: Path) -> None:
    src, dst = tmp_path / "src", tmp_path / "dst"
    src.write_text("new")
    dst.write_text("old")
    with pytest.raises(AlreadyExistsError, match="exists and overwrite is False"):
        CopyFile(str(src), str(dst), overwrite=False)
    assert dst.read_text() == "old"
    CopyFile(str(src), str(dst))
    assert dst.read_text() == "new"


def test_copying_a_missing_file_is_skipped_or_raises(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        CopyFile(str(tmp_path / "src"), str(tmp_path / "dst"))
    assert "which does not exist" in caplog.text
    with pytest.raises(NotFoundError, match=r"there is no .*src to copy to .*dst"):
        CopyFile(str(tmp_path / "src"), str(tmp_path / "dst"), skip_nonexist=False)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_is_tried_again_after_a_while(flaky: FlakyFileSystem, tmp_path: Path) -> None:
    flaky.pipe_file("/file", b"content")
    flaky.failures += [ConnectionResetError("reset"), TimeoutError("slow"), FileNotFoundError("listing is behind")]
    clock = FakeClock()
    CopyFile("flaky://file", str(tmp_path / "dst"), clock=clock)
    assert (tmp_path / "dst").read_bytes() == b"content"
    assert clock.monotonic() == pytest.approx(0.1 + 0.2 + 0.4)


def test_after_the_last_attempt_the_cause_is_raised(flaky: FlakyFileSystem, tmp_path: Path) -> None:
    flaky.pipe_file("/file", b"content")
    flaky.failures += [ConnectionResetError("reset")] * 5
    clock = FakeClock()
    with pytest.raises(UnavailableError, match=r"cannot copy flaky://file to .* in 3 attempts") as failed:
        CopyFile("flaky://file", str(tmp_path / "dst"), max_retries=3, clock=clock)
    assert isinstance(failed.value.__cause__, ConnectionResetError)
    assert len(flaky.failures) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_the_old_file_and_no_part(flaky: FlakyFileSystem, tmp_path: Path) -> None:
    (tmp_path / "src").write_bytes(b"new")
    flaky.pipe_file("/dst", b"old")
    flaky.failures += [OSError("disk full")]
    with pytest.raises(UnavailableError):
        CopyFile(str(tmp_path / "src"), "flaky://dst", max_retries=1)
    assert flaky.cat_file("/dst") == b"old"
    assert [path.rpartition("/")[2] for path in flaky.ls("/", detail=False)] == ["dst"]


def test_one_file_that_cannot_be_copied_fails_the_tree(flaky: FlakyFileSystem, tmp_path: Path) -> None:
    flaky.pipe_file("/src/a", b"1")
    flaky.pipe_file("/src/b", b"2")
    flaky.failures += [OSError("gone")]
    with pytest.raises(UnavailableError):
        CopyRecursively("flaky://src", str(tmp_path / "dst"), max_retries=1, max_workers=2)


@pytest.mark.parametrize("options", [{"max_workers": 0}, {"max_retries": 0}])
def test_numbers_below_one_are_refused(options: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must be >= 1, got 0"):
        CopyRecursively(str(tmp_path), str(tmp_path / "dst"), **options)  # type: ignore[arg-type]


def test_a_copy_of_one_file_without_attempts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^copy: max_retries must be >= 1, got 0$"):
        CopyFile(str(tmp_path / "src"), str(tmp_path / "dst"), max_retries=0)


def test_positional_arguments_keep_the_order_users_expect(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("text")
    source, target = str(tmp_path / "folder" / "file"), str(tmp_path / "copy")
    CopyFile(source, target, False, True, 1)
    with pytest.raises(AlreadyExistsError):
        CopyFile(source, target, False)
    with pytest.raises(NotFoundError):
        CopyFile(str(tmp_path / "none"), target, True, False)
    CopyRecursively(str(tmp_path / "folder"), str(tmp_path / "folders"), 2, True, 1)
    assert (tmp_path / "folders" / "file").read_text() == "text"
    with pytest.raises(ValueError, match="there is no"):
        CopyRecursively(str(tmp_path / "none"), target, 1, False)
