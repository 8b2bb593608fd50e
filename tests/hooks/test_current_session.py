"""The hook that makes a session known, without a `Session` that does it itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hooks.sessions import FakeSession
from monolith.hook import Hook, StepContext
from monolith.hooks import SetCurrentSessionHook
from monolith.testing import StepLoop
from monolith.train import get_current_session


@pytest.fixture(autouse=True)
def none_is_open() -> Iterator[None]:
    assert get_current_session() is None
    yield
    assert get_current_session() is None


def test_a_loop_that_ends_by_an_error_is_released() -> None:
    """`end` is not called then."""
    with pytest.raises(ZeroDivisionError), StepLoop([SetCurrentSessionHook()]) as loop:
        loop.run(lambda: 1 // 0)


def test_a_loop_whose_next_hook_fails_is_released() -> None:
    class Failing(Hook):
        def after_run(self, context: StepContext) -> None:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"), StepLoop([SetCurrentSessionHook(), Failing()]) as loop:
        loop.run(lambda: None)


def test_the_session_is_released_at_the_end_before_it_is_closed() -> None:
    """What the specification asks of `end`."""
    hook, session = SetCurrentSessionHook(), FakeSession()
    hook.after_create_session(session)
    assert get_current_session() is session
    hook.end(session)
    assert get_current_session() is None
    session.close()
