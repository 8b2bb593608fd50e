"""The path of a step: the session calls its parts, and none of them calls back into the session."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from monolith.hook import Call, Hook, StepContext
from monolith.testing import ExampleTask
from monolith.train import PipelineConfig, Session
from monolith.train import session as session_module

SESSION = session_module.__file__


class Beside(Hook):
    """Acts before, during and after a step, and reads nothing of the session."""

    def before_run(self, context: StepContext) -> Call:
        return lambda: 7

    def after_run(self, context: StepContext) -> None:
        assert context.results == 7


@contextmanager
def entries() -> Iterator[list[str]]:
    """Yields the functions of the session that other files call, in this thread and in those that start meanwhile."""
    entered: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        caller = frame.f_back
        is_own = caller is not None and caller.f_code.co_filename == SESSION
        if event == "call" and frame.f_code.co_filename == SESSION and not is_own:
            entered.append(frame.f_code.co_name)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield entered
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


@pytest.mark.parametrize("pipeline", [None, PipelineConfig(prefetch=2, postpush=True)])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_step_enters_the_session_once(mode: Any, pipeline: PipelineConfig | None) -> None:
    task = ExampleTask()
    with entries() as entered, Session(task, mode=mode, pipeline=pipeline, hooks=[Beside()]) as session:
        with session.feed(task.input_fn("train")) as feed:
            for _ in range(4):
                entered.clear()
                session.run_next(feed)
                assert entered == ["run_next"]
        entered.clear()
        session.run(next(iter(task.input_fn("train"))))
        assert entered == ["run"]
