"""The base of all hooks, and what a hook sees of a step."""

from __future__ import annotations

from threading import RLock

import pytest

from monolith.checkpoint import TrainState
from monolith.hook import Call, Hook, HookedSession, LastStep, StepContext
from monolith.testing import ExampleTask, StepLoop
from monolith.train import Collections, Session, StepResult

MEMBERS = [name for name in vars(HookedSession) if not name.startswith("_")]


def test_a_hook_that_overrides_nothing_does_nothing() -> None:
    hook = Hook()
    session: HookedSession = StepLoop()
    context = StepContext(session)
    hook.begin()
    hook.after_create_session(session)
    assert hook.before_run(context) is None
    hook.after_run(context)
    hook.end(session)
    assert context.results is None
    assert not context.stop_requested


def test_a_stop_requested_by_one_hook_is_seen_by_all() -> None:
    session = StepLoop()
    one, other = StepContext(session), StepContext(session)
    one.request_stop()
    assert one.stop_requested
    assert other.stop_requested
    assert session.stop_requested
    assert one.session is session


def test_the_step_is_that_of_the_session() -> None:
    steps: list[int] = []

    class Counts(Hook):
        def before_run(self, context: StepContext) -> None:
            steps.append(context.global_step)

        def after_run(self, context: StepContext) -> None:
            steps.append(context.global_step)

    with StepLoop([Counts()]) as loop:
        loop.run(lambda: None)
        loop.run(lambda: None)
    assert steps == [0, 1, 1, 2]


class TestWhatASessionOffers:
    def test_it_is_what_hooks_rely_on(self) -> None:
        assert sorted(MEMBERS) == [
            "collections", "global_step", "last", "on_close", "request_stop",
            "settle", "state", "step_lock", "stop_requested",
        ]  # fmt: skip

    @pytest.mark.parametrize("name", MEMBERS)
    def test_a_loop_and_a_session_offer_all_of_it(self, name: str) -> None:
        with StepLoop(state=TrainState()) as loop, Session(ExampleTask()) as session:
            offered: list[HookedSession] = [loop, session]  # mypy compares the types
            assert all(hasattr(each, name) for each in offered)

    def test_a_result_of_a_step_is_recognized_by_its_members(self) -> None:
        assert isinstance(StepResult(None, None, None, 0), LastStep)
        assert not isinstance({"loss": 0.5}, LastStep)


# Sessions that lack one thing each. mypy must refuse them: where it does not, it reports that the ignore is not needed.


class _Steps:
    global_step = 0
    stop_requested = False

    def request_stop(self) -> None: ...

    def on_close(self, close: Call) -> None: ...


class _Last:
    last: LastStep | None = None


class _State:
    state = TrainState()


class _Collections:
    collections = Collections()


class _Lock:
    step_lock = RLock()


class _Settle:
    def settle(self) -> None: ...


class Whole(_Steps, _Last, _State, _Collections, _Lock, _Settle): ...


class WithoutSteps(_Last, _State, _Collections, _Lock, _Settle): ...


class WithoutLast(_Steps, _State, _Collections, _Lock, _Settle): ...


class WithoutState(_Steps, _Last, _Collections, _Lock, _Settle): ...


class WithoutCollections(_Steps, _Last, _State, _Lock, _Settle): ...


class WithoutLock(_Steps, _Last, _State, _Collections, _Settle): ...


class WithoutSettle(_Steps, _Last, _State, _Collections, _Lock): ...


def test_a_session_that_lacks_something_is_refused_by_mypy() -> None:
    whole: HookedSession = Whole()
    lacking: list[HookedSession] = [
        WithoutSteps(),  # type: ignore[list-item]
        WithoutLast(),  # type: ignore[list-item]
        WithoutState(),  # type: ignore[list-item]
        WithoutCollections(),  # type: ignore[list-item]
        WithoutLock(),  # type: ignore[list-item]
        WithoutSettle(),  # type: ignore[list-item]
    ]
    assert [name for name in MEMBERS if not hasattr(whole, name)] == []
    assert all(any(not hasattr(session, name) for name in MEMBERS) for session in lacking)
