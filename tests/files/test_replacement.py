"""A file appears whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from monolith.errors import InvalidArgumentError, NotFoundError
from monolith.files import replaced_file


def test_the_old_file_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with replaced_file(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_keeps_the_existing_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(ArithmeticError), replaced_file(path) as temporary:  # noqa: PT012 - what was half written
        temporary.write_text("half")
        raise ArithmeticError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_replaced_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, why in ((tmp_path, "is a folder"), (tmp_path / "pipe", "a pipe"), ("s3://bucket/file", "local path")):
        with pytest.raises(InvalidArgumentError, match=why), replaced_file(path):
            pytest.fail("not reached")


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(NotFoundError, match=r"missing/file': cannot be written: there is no folder '.*missing'"),
        replaced_file(tmp_path / "missing" / "file"),
    ):
        pytest.fail("not reached")
