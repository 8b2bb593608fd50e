"""Traces of some steps."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monolith.errors import FailedPreconditionError
from monolith.hooks import CudaProfilerHook, ProfilerHook, ProfileWindows
from monolith.hooks.profiling import make_torch_profiler
from monolith.testing import StepLoop


class FakeProfiler:
    """Notes what it is told; its trace is a list of that."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def start(self) -> None:
        self._log.append("start")

    def stop(self) -> None:
        self._log.append("stop")

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_text(json.dumps(self._log))


def run_steps(hook: ProfilerHook | CudaProfilerHook, count: int) -> None:
    with StepLoop([hook]) as loop:
        for _ in range(count):
            loop.run(lambda: None)


@given(st.integers(0, 50), st.integers(2, 60), st.data())
def test_windows_repeat(start: int, every: int, data: st.DataObject) -> None:
    length = data.draw(st.integers(1, every - 1))
    windows = ProfileWindows(start, every_steps=every, num_steps=length)
    inside = [step for step in range(300) if windows.contains(step)]
    assert inside == sorted(
        step for first in range(start, 300, every) for step in range(first, min(first + length, 300))
    )


def test_ten_of_five_thousand_from_five_hundred_after_the_first() -> None:
    windows = ProfileWindows()
    inside = [step for step in range(70, 12000) if windows.contains(step)]
    assert inside == [*range(570, 580), *range(5570, 5580), *range(10570, 10580)]


@pytest.mark.parametrize("options", [{"num_steps": 0}, {"num_steps": 5, "every_steps": 5}, {"start_step": -1}])
def test_windows_that_make_no_sense_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="profiler: "):
        ProfileWindows(**options)


def test_each_window_is_a_file(tmp_path: Path) -> None:
    log: list[str] = []
    windows = ProfileWindows(2, every_steps=10, num_steps=3)
    run_steps(ProfilerHook(str(tmp_path), windows, make_profiler=lambda: FakeProfiler(log)), 14)
    assert log == ["start", "stop"] * 2
    assert sorted(path.name for path in (tmp_path / "profile").iterdir()) == ["step_12-13.json", "step_2-4.json"]


def test_a_profiler_that_does_not_start_is_not_stopped(tmp_path: Path) -> None:
    class Broken(FakeProfiler):
        def start(self) -> None:
            raise RuntimeError("no such device")

    log: list[str] = []
    hook = ProfilerHook(str(tmp_path), ProfileWindows(0), make_profiler=lambda: Broken(log))
    with pytest.raises(RuntimeError, match="no such device"):
        run_steps(hook, 1)
    assert log == []


def test_profilers_of_torch_start_without_a_warning() -> None:
    """Some releases, 2.11 among them, warn where nothing is said of cycles; warnings are errors here."""
    profiler: Any = make_torch_profiler()
    if "acc_events" in inspect.signature(torch.profiler.profile).parameters:
        assert profiler.acc_events
    profiler.start()
    profiler.stop()


def test_the_trace_of_torch_shows_what_ran(tmp_path: Path) -> None:
    hook = ProfilerHook(str(tmp_path), ProfileWindows(1, every_steps=100, num_steps=2))
    with StepLoop([hook]) as loop:
        for _ in range(4):
            loop.run(lambda: torch.ones(8, 8) @ torch.ones(8, 8))
    (file,) = (tmp_path / "profile").iterdir()
    assert file.name == "step_1-2.json"
    names = [event.get("name") for event in json.loads(file.read_text())["traceEvents"]]
    assert names.count("aten::mm") == 2


def test_a_trace_that_cannot_be_written_is_logged_and_training_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(FakeProfiler):
        def export_chrome_trace(self, path: str) -> None:
            raise OSError("disk full")

    log: list[str] = []
    hook = ProfilerHook(str(tmp_path), ProfileWindows(0, every_steps=9, num_steps=1), make_profiler=lambda: Broken(log))
    run_steps(hook, 3)
    assert "cannot write" in caplog.text
    assert log == ["start", "stop"]


def test_the_capture_of_cuda_is_a_range_of_steps() -> None:
    log: list[tuple[str, int]] = []
    steps = 0

    def note(what: str) -> None:
        log.append((what, steps))

    hook = CudaProfilerHook("3, 5", start=lambda: note("start"), stop=lambda: note("stop"))
    with StepLoop([hook]) as loop:
        for _ in range(8):
            loop.run(lambda: None)
            steps += 1
    assert log == [("start", 3), ("stop", 5)]


def test_a_capture_that_runs_at_the_end_is_ended() -> None:
    log: list[str] = []
    hook = CudaProfilerHook("1,100", start=lambda: log.append("start"), stop=lambda: log.append("stop"))
    run_steps(hook, 3)
    assert log == ["start", "stop"]


@pytest.mark.parametrize("from_to", ["", "3", "5,3", "3,3", "-1,3", "a,b", "1,2,3"])
def test_what_is_no_range_is_refused(from_to: str) -> None:
    with pytest.raises(ValueError, match="expected 'start,end' with 0 <= start < end"):
        CudaProfilerHook(from_to, start=list, stop=list)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_device_there_is_nothing_to_capture() -> None:
    with pytest.raises(FailedPreconditionError, match="no CUDA device to profile"):
        CudaProfilerHook("1,2")
