"""A session without a task keeps the order of the hooks, and closes whatever happens."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from monolith.checkpoint import TrainState
from monolith.errors import FailedPreconditionError
from monolith.hook import Calls, Hook, HookedSession, StepContext
from monolith.hooks import SetCurrentSessionHook
from monolith.testing import StepLoop
from monolith.train import StepResult, add_to_collections, get_collection


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


def test_calls_run_concurrently_with_the_step_and_each_other() -> None:
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


def test_what_a_step_returns_is_the_last_one_if_it_is_the_result_of_a_step() -> None:
    seen: list[object] = []

    class Looks(Hook):
        def after_run(self, context: StepContext) -> None:
            seen.append(context.session.last)

    result = StepResult(torch.tensor(0.5), None, None, 32)
    with StepLoop([Looks()]) as loop:
        assert loop.last is None
        loop.run(lambda: result)
        loop.run(lambda: 0.5)
    assert seen == [result, None]


def test_its_steps_are_those_of_the_state_that_it_is_given() -> None:
    class Counts(TrainState):
        settled = 0

        def settle(self) -> None:
            self.settled += 1

    state = Counts(global_step=40)
    with StepLoop(state=state) as loop:
        loop.run(lambda: None)
        loop.settle()
    assert loop.state is state
    assert (loop.global_step, state.global_step, state.settled) == (41, 41, 1)


def test_without_a_state_it_counts_and_reports_what_to_do() -> None:
    with StepLoop() as loop:
        loop.run(lambda: None)
        loop.settle()
        with pytest.raises(FailedPreconditionError, match=r"no state .* write `StepLoop\(hooks, state=TrainState"):
            _ = loop.state
    assert loop.global_step == 1


def test_steps_and_hooks_share_its_collections() -> None:
    def step() -> None:
        add_to_collections("seen", 7)

    with StepLoop([SetCurrentSessionHook()]) as loop:
        loop.run(step)
        assert loop.collections.get("seen") == get_collection("seen") == [7]


def test_its_lock_is_held_during_a_step_hooks_included_and_at_the_end() -> None:
    held: list[tuple[str, bool]] = []

    def look(moment: str) -> None:
        def try_it() -> None:
            free = loop.step_lock.acquire(blocking=False)
            held.append((moment, not free))
            if free:
                loop.step_lock.release()

        other = threading.Thread(target=try_it)
        other.start()
        other.join(20)

    class Looks(Hook):
        def before_run(self, context: StepContext) -> None:
            look("before")

        def after_run(self, context: StepContext) -> None:
            look("after")

        def end(self, session: HookedSession) -> None:
            look("end")

    loop = StepLoop([Looks()])
    with loop:
        loop.run(lambda: look("step"))
        look("between")
    look("closed")
    assert held == [
        ("before", True), ("step", True), ("after", True), ("between", False), ("end", True), ("closed", False),
    ]  # fmt: skip
