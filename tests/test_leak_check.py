"""The check that runs around every test notices each kind of thing that could be left."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

import leak_check
from leak_check import holdings, left_behind


@pytest.fixture(autouse=True)
def _no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leak_check, "_GRACE_SECONDS", 0.0)


def test_it_runs_around_every_test(request: pytest.FixtureRequest) -> None:
    without = [
        item.nodeid for item in request.session.items if "nothing_left_behind" not in getattr(item, "fixturenames", ())
    ]
    assert without == []


def test_a_thread_is_noticed() -> None:
    before, end = holdings(), threading.Event()
    thread = threading.Thread(target=end.wait, name="forgotten")
    thread.start()
    assert [each.split(" (")[0] for each in left_behind(before)] == ["thread forgotten"]
    end.set()
    thread.join()
    assert left_behind(before) == []


def test_a_process_is_noticed() -> None:
    before = holdings()
    with subprocess.Popen([sys.executable, "-c", "input('forgotten')"], stdin=subprocess.PIPE) as process:
        found = left_behind(before)
        process.communicate(b"\n")
    assert len(found) == 1
    assert found[0].startswith("process ")
    assert "forgotten" in found[0]
    assert left_behind(before) == []


def test_a_process_of_another_thread_is_noticed() -> None:
    before, started, end = holdings(), threading.Event(), threading.Event()

    def hold() -> None:
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
            started.set()
            end.wait()
            process.communicate(b"\n")

    thread = threading.Thread(target=hold)
    thread.start()
    started.wait()
    found = left_behind(before)
    end.set()
    thread.join()
    assert [each.split()[0] for each in found] == ["process", "thread"]


def test_a_socket_is_noticed() -> None:
    before = holdings()
    with socket.socket():
        assert [each.split(":")[0] for each in left_behind(before)] == ["descriptor socket"]
    assert left_behind(before) == []


def test_an_open_file_is_noticed(tmp_path: Path) -> None:
    before = holdings()
    with (tmp_path / "forgotten").open("w"):
        assert left_behind(before) == [f"descriptor {tmp_path}/forgotten"]
    assert left_behind(before) == []


def test_a_file_on_disk_is_noticed_and_a_cache_is_not(tmp_path: Path) -> None:
    before = holdings([str(tmp_path)])
    for name in ("forgotten", ".cache", "hsperfdata_me", "torchinductor_me"):
        (tmp_path / name).mkdir()
    assert left_behind(before, [str(tmp_path)]) == [f"file {tmp_path}/forgotten"]


def test_temporary_files_go_where_they_are_noticed(watched_folders: tuple[str, ...]) -> None:
    before = holdings(watched_folders)
    with tempfile.TemporaryDirectory() as folder:
        assert left_behind(before, watched_folders) == [f"file {folder}"]
    made = subprocess.check_output([sys.executable, "-c", "import tempfile; print(tempfile.mkdtemp())"], text=True)
    assert left_behind(before, watched_folders) == [f"file {made.strip()}"]
    Path(made.strip()).rmdir()
