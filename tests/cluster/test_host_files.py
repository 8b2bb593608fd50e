"""Files that carry addresses: whole or not at all, on any file system."""

from __future__ import annotations

import threading
from pathlib import Path

import fsspec
import pytest

from monolith.cluster.discovery import HostServiceDiscovery
from monolith.errors import StorageFullError
from monolith.files import text_files


def test_each_index_is_a_file_of_its_role(tmp_path: Path) -> None:
    discovery = HostServiceDiscovery(f"{tmp_path}/job/")
    discovery.register("ps", 3, "10.0.0.1:2222")
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == ["job/ps/3"]
    assert (tmp_path / "job/ps/3").read_text() == "10.0.0.1:2222"


def test_other_files_are_no_registrations(tmp_path: Path) -> None:
    discovery = HostServiceDiscovery(str(tmp_path))
    discovery.register("ps", 0, "10.0.0.1:2222")
    (tmp_path / "ps" / "1-tmp.abc").write_text("10.0.0.2:22")  # what a writer that died left
    (tmp_path / "ps" / "2").write_text("")
    (tmp_path / "ps" / "README").write_text("hello")
    (tmp_path / "loose").write_text("hello")
    assert discovery.query_all() == {"ps": {0: "10.0.0.1:2222"}}


def test_any_fsspec_path_will_do() -> None:
    base = "memory://test_host_files/job"
    discovery = HostServiceDiscovery(base)
    discovery.register("worker", 0, "10.0.0.1:1")
    discovery.register("worker", 0, "10.0.0.2:2")
    assert HostServiceDiscovery(base).query_all() == {"worker": {0: "10.0.0.2:2"}}
    assert fsspec.filesystem("memory").cat_file("/test_host_files/job/worker/0") == b"10.0.0.2:2"
    discovery.deregister("worker", 0, "10.0.0.2:2")
    assert discovery.query_all() == {}


def test_no_folder_is_refused() -> None:
    with pytest.raises(ValueError, match="base must be a folder"):
        HostServiceDiscovery("")


def test_a_reader_never_sees_a_part_of_a_text(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    texts = ["a" * 100_000, "b" * 200_000]
    text_files.write_text(path, texts[0])
    stop = threading.Event()

    def rewrite() -> None:
        for number in range(200):
            text_files.write_text(path, texts[number % 2])
        stop.set()

    writer = threading.Thread(target=rewrite)
    writer.start()
    seen = set()
    while not stop.is_set():
        seen.add(text_files.read_text(path))
    writer.join()
    assert seen <= set(texts)


def test_a_write_that_fails_leaves_the_old_text_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "file")
    text_files.write_text(path, "old")

    def no_space(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", no_space)
    with pytest.raises(StorageFullError, match="No space left"):
        text_files.write_text(path, "new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert text_files.read_text(path) == "old"


def test_missing_files_read_as_empty(tmp_path: Path) -> None:
    assert text_files.read_text(str(tmp_path / "none")) is None
    assert text_files.names_in(str(tmp_path / "none")) == []
    text_files.remove(str(tmp_path / "none"))
