"""One line for many processes, and the words that it is made of."""

from __future__ import annotations

import io
import json
import os
import select

import pytest

from monolith import environment
from monolith.clock import SystemClock
from monolith.launch import Role
from monolith.launch.job_view import JobView
from monolith.launch.process import Lines
from monolith.launch.progress_pipe import PROGRESS_FD, ProgressPipe
from monolith.launch.supervision import Supervision
from monolith.observe.progress import Progress

PS, CHIEF, WORKER = Role("ps", 0), Role("worker", 0), Role("worker", 1)


class EveryTime(SystemClock):
    """Each look at it is a minute later, so that every update is shown."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        self._now += 60.0
        return self._now


def shown_by(*messages: tuple[Role, dict[str, object]], gone: Role | None = None) -> list[str]:
    supervision, file = Supervision((PS, CHIEF, WORKER)), io.StringIO()
    supervision.due(0.0)
    view = JobView(Progress(file=file, clock=EveryTime()), supervision)
    for role, message in messages:
        view.heard(role, message)
    if gone is not None:
        supervision.ended(gone, -9, 1.0)
        view.gone(gone)
    return file.getvalue().splitlines()


def progress(done: int, **fields: object) -> dict[str, object]:
    return {"done": done, "total": 50, "fields": fields}


def test_the_step_is_the_jobs_and_rates_are_added_up() -> None:
    lines = shown_by(
        (CHIEF, progress(7, examples_per_second=100, loss=0.5)), (WORKER, progress(6, examples_per_second=50, loss=0.7))
    )
    head = "workers 2/2, servers 1/1, restarts 0"
    assert lines[0] == f"7/50 steps (14 %), {head}, examples per second 100, loss 0.5"
    assert lines[1] == f"7/50 steps (14 %), {head}, examples per second 150, loss 0.5", "the loss is the chief's"


def test_a_lost_worker_does_nothing_per_second() -> None:
    lines = shown_by(
        (CHIEF, progress(7, examples_per_second=100)),
        (WORKER, progress(9, examples_per_second=50)),
        gone=WORKER,
    )
    assert lines[-1] == "9/50 steps (18 %), workers 1/2, servers 1/1, restarts 1, examples per second 100"


@pytest.mark.parametrize("message", [{}, {"done": "7", "fields": {}}, {"done": 7}, {"done": 7, "fields": []}])
def test_words_that_are_no_progress_show_nothing(message: dict[str, object]) -> None:
    assert shown_by((CHIEF, message)) == []


def test_lines_are_complete_however_input_is_chunked() -> None:
    lines = Lines()
    assert lines.add(b"one\ntw") == ["one"]
    assert lines.add(b"o\r\nold\rnew\n\xff\n") == ["two", "new", "\N{REPLACEMENT CHARACTER}"]
    assert lines.add(b"x" * (2 << 16)) == ["x" * (1 << 16)], "a line that never ends is cut"
    assert lines.end() == ["x" * (1 << 16)]
    assert lines.end() == []


class TestPipe:
    def test_it_is_that_of_the_variable_and_is_taken_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ours, theirs = os.pipe()
        os.set_inheritable(theirs, True)
        monkeypatch.setenv(PROGRESS_FD, str(theirs))
        pipe = ProgressPipe.from_environment()
        assert pipe is not None
        assert not os.get_inheritable(theirs)
        assert ProgressPipe.from_environment() is None
        assert not environment.get(PROGRESS_FD)
        with pipe:
            pipe.send({"done": 1, "fields": {}})
            pipe.send_result({"rows": 3})
        pipe.send({"done": 2, "fields": {}})
        with os.fdopen(ours) as told:
            assert [json.loads(line) for line in told] == [{"done": 1, "fields": {}}, {"result": {"rows": 3}}]

    @pytest.mark.parametrize("told", ["", "many", "-1", "99999", "0"])
    def test_a_variable_that_names_no_pipe_is_no_pipe(self, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(PROGRESS_FD, told)
        null = os.open(os.devnull, os.O_RDONLY)
        try:
            monkeypatch.setenv(PROGRESS_FD, str(null) if told == "0" else told)
            assert ProgressPipe.from_environment() is None
        finally:
            os.close(null)

    def test_a_launcher_that_does_not_read_blocks_no_sender(self) -> None:
        ours, theirs = os.pipe()
        with ProgressPipe(theirs) as pipe:
            for done in range(10_000):
                pipe.send({"done": done, "fields": {}})
            assert os.read(ours, 12) == b'{"done": 0, '
        os.close(ours)

    def test_a_dead_launcher_raises_no_error(self) -> None:
        ours, theirs = os.pipe()
        os.close(ours)
        with ProgressPipe(theirs) as pipe:
            pipe.send({"done": 1, "fields": {}})
            pipe.send_result({"rows": 1})

    def test_a_message_too_large_for_one_atomic_write_is_skipped(self) -> None:
        ours, theirs = os.pipe()
        with ProgressPipe(theirs) as pipe:
            pipe.send({"text": "x" * select.PIPE_BUF})
        assert os.read(ours, 1) == b""
        os.close(ours)
