"""A signal stops the session at the end of a step, whenever the signal comes."""

from __future__ import annotations

import io
import signal
from collections.abc import Iterator

import pytest

from hooks.sessions import FakeSession
from monolith.hooks import StopOnSignal
from monolith.observe import Progress


@pytest.fixture
def stop() -> Iterator[StopOnSignal]:
    before = signal.getsignal(signal.SIGTERM)
    hook = StopOnSignal(Progress(total=None, file=io.StringIO()))
    hook.begin()
    yield hook
    hook.restore()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_before_the_session_exists_stops_it_when_it_begins(stop: StopOnSignal) -> None:
    signal.raise_signal(signal.SIGTERM)
    session = FakeSession()
    stop.after_create_session(session)
    assert session.stop_requested
    assert stop.received is signal.SIGTERM


def test_a_signal_during_a_session_stops_it(stop: StopOnSignal) -> None:
    session = FakeSession()
    stop.after_create_session(session)
    assert not session.stop_requested
    signal.raise_signal(signal.SIGTERM)
    assert session.stop_requested
