from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import fsspec
import pytest
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event

from monolith.errors import FailedPreconditionError, ResourceExhaustedError, UnavailableError
from monolith.observe.summaries import SummaryWriter, nas_data
from monolith.testing import FakeClock


def events(path: str | Path) -> list[Any]:
    return [Event.FromString(record) for record in RawEventFileLoader(str(path)).Load()]


def test_an_event_carries_version_step_time_and_summary(tmp_path: Path) -> None:
    clock = FakeClock(now=1_700_000_000.25)
    with SummaryWriter(tmp_path / "made" / "here", clock=clock) as writer:
        clock.advance(1)
        writer.add_summary(nas_data([1.0]), 2**40)
    first, second = events(writer.path)
    assert (first.file_version, first.wall_time) == ("brain.Event:2", 1_700_000_000.25)
    assert (second.step, second.wall_time) == (2**40, 1_700_000_001.25)
    assert second.summary == nas_data([1.0])
    assert Path(writer.path).name.startswith("events.out.tfevents.1700000000.")


def test_writers_of_one_folder_have_files_of_their_own(tmp_path: Path) -> None:
    clock = FakeClock(now=5.0)
    with SummaryWriter(tmp_path, clock=clock), SummaryWriter(tmp_path, clock=clock, filename_suffix=".v2") as second:
        assert second.path.endswith(".v2")
    assert len(list(tmp_path.iterdir())) == 2


def test_what_was_added_is_on_disk_after_a_flush(tmp_path: Path) -> None:
    with SummaryWriter(tmp_path) as writer:
        assert len(events(writer.path)) == 1
        writer.add_summary(nas_data([1.0]), 1)
        writer.flush()
        assert len(events(writer.path)) == 2


def test_the_clock_flushes(tmp_path: Path) -> None:
    clock = FakeClock()
    with SummaryWriter(tmp_path, clock=clock, flush_seconds=10) as writer:
        writer.add_summary(nas_data([1.0]), 1)
        assert len(events(writer.path)) == 1
        clock.advance(10)
        writer.add_summary(nas_data([1.0]), 2)
        assert len(events(writer.path)) == 3


def test_any_fsspec_path_will_do() -> None:
    with SummaryWriter("memory://runs/a/") as writer:
        writer.add_summary(nas_data([1.0]), 1)
    system = fsspec.filesystem("memory")
    try:
        assert system.size(writer.path) > 100
        assert "//events" not in writer.path
    finally:
        system.rm("/runs", recursive=True)


def test_records_of_threads_do_not_mix(tmp_path: Path) -> None:
    with SummaryWriter(tmp_path) as writer:

        def add(first: int) -> None:
            for step in range(first, first + 100):
                writer.add_summary(nas_data([float(step)] * 50), step)

        threads = [threading.Thread(target=add, args=(first,)) for first in (0, 100, 200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(event.step for event in events(writer.path)[1:]) == list(range(300))


def test_after_closing_it_refuses_and_a_second_close_is_nothing(tmp_path: Path) -> None:
    writer = SummaryWriter(tmp_path)
    writer.close()
    writer.close()
    for call in (writer.flush, lambda: writer.add_summary(nas_data([1.0]), 1)):
        with pytest.raises(FailedPreconditionError, match=r"events.*is closed; make another SummaryWriter"):
            call()


def test_what_is_no_summary_is_refused(tmp_path: Path) -> None:
    with SummaryWriter(tmp_path) as writer:
        with pytest.raises(TypeError, match="summary must be a Summary proto, got dict"):
            writer.add_summary({}, 1)
        writer.add_summary(nas_data([1.0]), 1)
    assert len(events(writer.path)) == 2


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match=r"event file .* cannot be written"):
        SummaryWriter(tmp_path / "file" / "run")


def test_a_full_disk_is_reported_and_nothing_is_written_after_a_partial_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = SummaryWriter(tmp_path)

    def full(data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writer._records, "write", full)
    with pytest.raises(ResourceExhaustedError, match="No space left"):
        writer.add_summary(nas_data([1.0]), 1)
    monkeypatch.undo()
    with pytest.raises(FailedPreconditionError, match="is broken"):
        writer.add_summary(nas_data([1.0]), 1)
    writer.close()
    assert len(events(writer.path)) == 1
