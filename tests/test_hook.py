"""The base of all hooks, and what a hook sees of a step."""

from __future__ import annotations

from monolith.hook import Hook, HookedSession, StepContext
from monolith.testing import StepLoop


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


def test_a_stop_asked_for_by_one_hook_is_seen_by_all() -> None:
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
