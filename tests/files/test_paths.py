"""Paths with and without a protocol."""

from __future__ import annotations

import os.path
from pathlib import Path

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.files import basename, dirname, exists, isabs, join, remove_folder

LOCAL = st.text("ab/.", max_size=12)


@pytest.mark.parametrize(
    "path", ["hdfs:/x", "hdfs://host/x", "s3://b", "memory://", "gs://b/x", "/x", "/", "abfs+s://c"]
)
def test_what_stands_for_itself(path: str) -> None:
    assert isabs(path)


@pytest.mark.parametrize("path", ["", "x", "./x", "x/hdfs:/y", "a:b/c", "1:/x", "~/x", "hdfs"])
def test_what_does_not(path: str) -> None:
    assert not isabs(path)


def test_the_function_of_python_is_unchanged() -> None:
    assert not os.path.isabs("hdfs:/x")  # noqa: PTH117 - that it is as it was


@given(LOCAL)
def test_without_a_protocol_paths_behave_as_in_python(path: str) -> None:
    assert basename(path) == os.path.basename(path)  # noqa: PTH119 - the reference
    assert isabs(path) == os.path.isabs(path)  # noqa: PTH117 - the reference
    assert join("x", path) == os.path.join("x", path)  # noqa: PTH118 - the reference
    assert dirname(path) == os.path.dirname(path)  # noqa: PTH120 - the reference


@given(st.sampled_from(["s3://bucket", "hdfs:/models", "/models", "models"]), st.lists(st.text("xyz", min_size=1)))
def test_what_is_joined_comes_apart(folder: str, parts: list[str]) -> None:
    path = join(folder, *parts)
    for part in reversed(parts):
        assert basename(path) == part
        path = dirname(path)
    assert path == folder


def test_exists_on_any_file_system(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert exists(str(tmp_path / "file"))
    assert exists(str(tmp_path))
    assert not exists(str(tmp_path / "other"))
    memory = fsspec.filesystem("memory")
    try:
        memory.pipe_file("/models/ONLINE", b"")
        assert exists("memory://models/ONLINE")
        assert not exists("memory://models/OFFLINE")
    finally:
        memory.store.clear()


@pytest.mark.parametrize("root", ["{tmp_path}", "file://{tmp_path}", "memory://removed"])
def test_a_folder_is_removed_with_all_that_is_in_it_and_nothing_else(tmp_path: Path, root: str) -> None:
    root = root.format(tmp_path=tmp_path)
    files, folder = fsspec.core.url_to_fs(root)
    for name in ("a/b/c", "a/d", "ab"):
        files.makedirs(f"{folder}/{name}".rpartition("/")[0], exist_ok=True)
        files.pipe_file(f"{folder}/{name}", b"x")
    assert remove_folder(f"{root}/a")
    assert not exists(f"{root}/a")
    assert exists(f"{root}/ab")
    assert not remove_folder(f"{root}/a")
    assert not remove_folder(f"{root}/ab"), "it is no folder"
    assert exists(f"{root}/ab")
