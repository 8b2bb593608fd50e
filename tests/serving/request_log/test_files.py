"""The files of a request log: rolled, shared, whole after a kill, and going on after a full disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from monolith.errors import NotFoundError, OpError, ResourceExhaustedError
from monolith.serving.request_log import read_requests
from monolith.serving.request_log.records import records_of
from monolith.serving.request_log.sinks import RolledFiles
from monolith.testing import FakeClock
from serving.request_log.answered_requests import plain


class Told:
    """What became of records."""

    def __init__(self) -> None:
        self.written = 0
        self.problems: list[Exception] = []

    def __call__(self, count: int, error: Exception | None) -> None:
        if error is None:
            self.written += count
        else:
            self.problems.append(error)


def _files(folder: Path, told: Told, clock: FakeClock | None = None, roll_bytes: int = 1 << 20) -> RolledFiles:
    return RolledFiles(
        str(folder), told, roll_bytes=roll_bytes, roll_seconds=60.0, clock=FakeClock(1.7e9) if clock is None else clock
    )


def _append(files: RolledFiles, *numbers: int) -> None:
    for number in numbers:
        files.append(b"r", records_of(plain(number), time_ms=1000 + number))


def _requests(folder: Path) -> list[bytes]:
    return sorted(request.request_id for request in read_requests(str(folder)))


def test_a_new_file_begins_by_size_and_by_time(tmp_path: Path) -> None:
    clock, told = FakeClock(1.7e9), Told()
    files = _files(tmp_path, told, clock, roll_bytes=500)
    assert list(tmp_path.iterdir()) == []
    _append(files, 1, 2)
    first = files.path
    _append(files, 3)
    assert files.path != first
    second = files.path
    clock.advance(61.0)
    files.flush()
    _append(files, 4)
    files.close(1.0)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [first.name, second.name, files.path.name]
    assert names[0].startswith("20231114T221320-")
    assert all(name.endswith(".requests") for name in names)
    assert _requests(tmp_path) == [b"r1", b"r2", b"r3", b"r4"]
    assert told.written == 8


def test_several_servers_share_a_folder(tmp_path: Path) -> None:
    servers = [_files(tmp_path, Told()) for _ in range(3)]
    for number, files in enumerate(servers):
        _append(files, number)
        files.close(1.0)
    assert _requests(tmp_path) == [b"r0", b"r1", b"r2"]
    assert len(list(tmp_path.iterdir())) == 3


def test_a_torn_end_costs_its_record_alone(tmp_path: Path) -> None:
    files = _files(tmp_path, Told())
    _append(files, 1, 2)
    files.close(1.0)
    whole = files.path.read_bytes()
    for cut in range(1, 200):
        files.path.write_bytes(whole[:-cut])
        *before, last = read_requests(str(tmp_path))
        assert [each.request_id for each in before] == [b"r1"]
        assert (last.request_id, len(last.examples)) == (b"r2", 1)


@pytest.mark.parametrize("can_truncate", [True, False])
def test_a_full_disk_loses_what_comes_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_truncate: bool
) -> None:
    told = Told()
    files = _files(tmp_path, told)
    _append(files, 1)
    pwrite = os.pwrite

    def half(descriptor: int, data: memoryview, at: int) -> int:
        if len(data) > 100:
            return pwrite(descriptor, data[:100], at)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", half)
        if not can_truncate:
            patch.setattr(os, "ftruncate", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "broken")))
        _append(files, 2)
    assert isinstance(told.problems[0], ResourceExhaustedError)
    _append(files, 3)
    files.close(1.0)
    # Of a file that can be neither written nor cut, whole records of a lost request may be left.
    assert [each for each in _requests(tmp_path) if can_truncate or each != b"r2"] == [b"r1", b"r3"]
    assert (told.written, len(told.problems)) == (4, 1)
    assert len(list(tmp_path.iterdir())) == (1 if can_truncate else 2)


def test_a_folder_that_is_recreated_is_written_to_again(tmp_path: Path) -> None:
    told = Told()
    folder = tmp_path / "log"
    files = _files(folder, told)
    folder.rmdir()
    _append(files, 1)
    assert isinstance(told.problems[0], NotFoundError)
    folder.mkdir()
    _append(files, 2)
    files.close(1.0)
    assert _requests(folder) == [b"r2"]


def test_a_place_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    with pytest.raises(OpError, match="must be a folder, and is a file"):
        _files(tmp_path / "file", Told())
    with pytest.raises(OpError, match="cannot be written"):
        _files(tmp_path / "file" / "below", Told())


def test_what_is_no_log_is_reported_as_such(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"has no files \*\.requests"):
        list(read_requests(str(tmp_path)))
    with pytest.raises(NotFoundError, match="does not exist"):
        list(read_requests(str(tmp_path / "nowhere")))
    files = _files(tmp_path, Told())
    _append(files, 1)
    files.append(b"r", [b"\xff\xff", b""])
    _append(files, 2)
    files.close(1.0)
    with pytest.raises(OpError, match=r"offset \d+"):
        list(read_requests(str(tmp_path)))
    found = list(read_requests(str(tmp_path), max_bad_records=2))
    assert [each.request_id for each in found] == [b"r1", b"r2"]
