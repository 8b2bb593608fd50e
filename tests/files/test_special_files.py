"""What is no file stays what it is, whoever writes there."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from monolith.data.records.writer import RecordWriter
from monolith.errors import InvalidArgumentError, NotFoundError
from monolith.files import CopyFile, open_if_there

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WRITERS: dict[str, Callable[[str, str], object]] = {
    "copy": lambda source, target: CopyFile(source, target, True),
    "records": lambda _, target: RecordWriter(target),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS.keys())
def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path, write: Callable[[str, str], object]) -> None:
    source, pipe = tmp_path / "source", tmp_path / "pipe"
    source.write_bytes(b"x")
    os.mkfifo(pipe)
    with pytest.raises(InvalidArgumentError, match="it is a device, a pipe or a socket; give another name"):
        write(str(source), str(pipe))
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["pipe", "source"]


def test_a_file_is_opened_once_it_exists_and_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    place = tmp_path / "later"
    assert open_if_there(str(place)) is None
    place.write_bytes(b"x")
    found = open_if_there(str(place))
    assert found is not None
    try:
        assert (os.read(found, 9), os.get_inheritable(found)) == (b"x", False)
    finally:
        os.close(found)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidArgumentError, match="it is a device, a pipe or a socket"):
        open_if_there(str(tmp_path / "pipe"))
    with pytest.raises(NotFoundError, match="cannot be read"):
        open_if_there(str(place / "below"))
