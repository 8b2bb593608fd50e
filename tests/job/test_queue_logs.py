"""The home server writes down whose a file is before it hands it out, and knows it when it comes back."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from monolith.data.file_queue import FileAssignments, LookUp
from monolith.job.queue_logs import QueueLogs
from monolith.job.queues import JobQueues

FILES = ["a", "b", "c", "d"]


@contextmanager
def opened(folder: Path) -> Iterator[JobQueues]:
    with closing(JobQueues(QueueLogs(folder))) as queues:
        yield queues


def files(queues: JobQueues, name: str = "files") -> FileAssignments:
    return queues.open(name, digest="x", num_look_ups=1, seed=None)


def take(queue: FileAssignments, worker: int, turn: int) -> str | None:
    while isinstance(found := queue.take(worker, turn, 0), LookUp):
        assert found.number is not None
        queue.found(found.number, FILES)
    return None if found is None else found.path


def test_files_that_were_handed_out_are_known_after_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path) as queues:
        assert [take(files(queues), 0, 0), take(files(queues), 1, 0)] == ["a", "b"]
        assert take(files(queues, "more/../of them"), 7, 0) == "a"
    with opened(tmp_path) as queues:
        assert queues.workers == {0, 1, 7}
        assert [take(files(queues), 1, 0), take(files(queues), 1, 1)] == ["b", "c"]
        assert take(files(queues, "more/../of them"), 7, 1) == "b"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_is_in_the_log_before_it_is_handed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as queues:
        assert take(files(queues), 0, 0) == "a"

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, "no space left")

        with monkeypatch.context() as broken:
            broken.setattr(os, "write", full)
            with pytest.raises(OSError, match="no space left"):
                take(files(queues), 1, 0)
        assert take(files(queues), 2, 0) == "b", "what could not be written down was not handed out"
    with opened(tmp_path) as queues:
        assert queues.workers == {0, 2}


def test_half_a_line_is_of_a_server_that_was_killed(tmp_path: Path) -> None:
    with opened(tmp_path) as queues:
        assert [take(files(queues), 0, 0), take(files(queues), 1, 0)] == ["a", "b"]
    (log,) = tmp_path.iterdir()
    log.write_bytes(log.read_bytes()[:-3])
    with opened(tmp_path) as queues:
        assert queues.workers == {0}
        assert take(files(queues), 0, 1) == "b"
    with opened(tmp_path) as queues:
        assert take(files(queues), 0, 1) == "b"


def test_a_damaged_log_is_skipped_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path) as queues:
        assert [take(files(queues), 0, 0), take(files(queues), 1, 0)] == ["a", "b"]
    (log,) = tmp_path.iterdir()
    damaged = bytearray(log.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    log.write_bytes(damaged)
    with caplog.at_level(logging.WARNING), opened(tmp_path) as queues:
        assert queues.workers == set()
        assert "files.files: skipped; workers that took files of this queue need a checkpoint" in caplog.text
        assert take(files(queues), 0, 0) == "a"


def test_a_checkpoint_replaces_the_log(tmp_path: Path) -> None:
    with opened(tmp_path) as queues:
        assert take(files(queues), 0, 0) == "a"
        saved = queues.state_dict()
        assert take(files(queues), 0, 1) == "b"
        assert take(files(queues, "more"), 5, 0) == "a"
        queues.load_state_dict(saved)
        assert take(files(queues), 1, 0) == "b"
    with opened(tmp_path) as queues:
        assert queues.workers == {0, 1}
        queues.load_state_dict({})
    with opened(tmp_path) as queues:
        assert queues.workers == set()
    assert list(tmp_path.iterdir()) == []
