"""A session without a model keeps the order of the hooks, and closes whatever happens."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from monolith.hook import Calls, Hook, HookedSession, StepContext
from monolith.testing import StepLoop


class Recorder(Hook):
    def __init__(self, name: str, log: list[str], calls: Calls = None) -> None:
        self._name, self._log, self._calls = name, log, calls
        self.results: list[Any] = []

    def begin(self) -> None:
        self._log.append(f"{self._name} begin")

    def after_create_session(self, session: HookedSession) -> None:
        self._log.append(f"{self._name} created")
        session.on_close(lambda: self._log.append(f"{self._name} closed"))

    def before_run(self, context: StepContext) -> Calls:
        self._log.append(f"{self._name} before")
        return self._calls

    def after_run(self, context: StepContext) -> None:
        self._log.append(f"{self._name} after")
        self.results.append(context.results)

    def end(self, session: HookedSession) -> None:
        self._log.append(f"{self._name} end")


def test_every_method_of_all_hooks_comes_before_the_next_method() -> None:
    log: list[str] = []
    with StepLoop([Recorder("a", log), Recorder("b", log)]) as loop:
        assert loop.run(lambda: f"step {log.append('step')}") == "step None"  # type: ignore[func-returns-value]
    assert log == [
        "a begin", "b begin", "a created", "b created",
        "a before", "b before", "step", "a after", "b after",
        "a end", "b end", "b closed", "a closed",
    ]  # fmt: skip


def test_an_error_skips_after_run_and_end_but_closes() -> None:
    log: list[str] = []
    with pytest.raises(ZeroDivisionError), StepLoop([Recorder("a", log)]) as loop:
        loop.run(lambda: 1 // 0)
    assert log == ["a begin", "a created", "a before", "a closed"]
    assert loop.global_step == 0


@pytest.mark.parametrize(
    ("calls", "results"),
    [
        (lambda: 1, 1),
        ([lambda: 1, lambda: 2], [1, 2]),
        ({"x": lambda: 1, "y": lambda: None}, {"x": 1, "y": None}),
        ([], []),
        (None, None),
    ],
)
def test_results_come_in_the_shape_of_the_calls(calls: Calls, results: Any) -> None:
    hook = Recorder("a", [], calls)
    with StepLoop([hook]) as loop:
        loop.run(lambda: None)
    assert hook.results == [results]


def test_calls_run_beside_the_step_and_each_other() -> None:
    together = threading.Barrier(3, timeout=20)
    with StepLoop([Recorder("a", [], [together.wait, together.wait])]) as loop:
        loop.run(together.wait)


def test_calls_are_waited_for_when_the_step_fails_and_their_errors_count() -> None:
    done = []
    go_on = threading.Event()

    def slow() -> None:
        go_on.wait(20)
        done.append(True)

    def failing_step() -> None:
        go_on.set()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), StepLoop([Recorder("a", [], slow)]) as loop:
        loop.run(failing_step)
    assert done == [True]

    def fails() -> None:
        raise ConnectionError("server gone")

    log: list[str] = []
    with pytest.raises(ConnectionError, match="server gone"), StepLoop([Recorder("a", log, fails)]) as loop:
        loop.run(lambda: None)
    assert "a after" not in log
    assert loop.global_step == 0


def test_steps_need_an_open_loop() -> None:
    with pytest.raises(RuntimeError, match="inside `with StepLoop"):
        StepLoop().run(lambda: None)
