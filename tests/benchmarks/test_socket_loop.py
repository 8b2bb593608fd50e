"""The bare socket loop moves what it is asked to, and says what both ends spent on it."""

from __future__ import annotations

import os
import shutil

import pytest

from benchmarks.suites.processes import cpu_seconds, on_cores
from benchmarks.suites.ps.socket_loop import StepBytes, running_loop
from monolith.cli._bench.measurement import RowSkippedError

needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="the loop is compiled in the run")


@pytest.mark.slow
@needs_compiler
def test_more_bytes_cost_more_processor_time() -> None:
    with running_loop() as loop:
        small, large = StepBytes(ask=8, rows=64, push=64), StepBytes(ask=80_000, rows=8_000_000, push=8_000_000)
        assert large.total == 16_080_000
        little, much = loop.turn(small, buffers=1, steps=3), loop.turn(large, buffers=2, steps=3)
    assert 0 < little.cpu_seconds < much.cpu_seconds
    assert much.wall_seconds > 0


@pytest.mark.slow
@needs_compiler
def test_a_loop_that_died_is_an_error_and_no_figure() -> None:
    with running_loop() as loop:
        loop._process.kill()
        loop._process.wait()
        with pytest.raises(RuntimeError, match="socket loop ended"):
            loop.turn(StepBytes(8, 8, 8), buffers=1, steps=1)


def test_without_a_compiler_the_row_is_skipped_and_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(RowSkippedError, match=r"socket_loop\.cpp .* install g\+\+"), running_loop():
        pass


def test_processor_time_of_a_process_grows_with_its_work() -> None:
    before = cpu_seconds([os.getpid()])
    sum(number * number for number in range(200_000))
    assert cpu_seconds([os.getpid()]) > before
    assert cpu_seconds([]) == 0


def test_a_row_runs_on_the_number_of_cores_it_specifies_or_is_skipped() -> None:
    before = os.sched_getaffinity(0)
    with on_cores(1):
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == before
    with pytest.raises(RowSkippedError, match="needs 4096 cores"), on_cores(4096):
        pass
