"""For whom the chief of a job waits at its end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from monolith.checkpoint import TrainState
from monolith.job.state import JobMember, JobState
from monolith.testing import FakeClock
from monolith.train.config.job_config import JobConfig
from monolith.train.strategies.job_end import JobEnd, _unfinished


@pytest.mark.parametrize(("stops", "awaited"), [(False, [1, 2]), (True, [1])])
def test_an_unavailable_worker_is_not_awaited_once_the_job_is_stopping(stops: bool, awaited: list[int]) -> None:
    """It may have been told to stop before it had joined: nobody starts it again."""
    state = JobState(
        num_workers=5,
        members=(JobMember(role="worker", index=0), JobMember(role="worker", index=1)),
        finished=frozenset({3}),
        left=frozenset({4}),
        stop_requested=stops,
    )
    assert _unfinished(state, may_adopt=True) == awaited


class Client:
    """A coordinator that answers with one state; time passes while a worker waits for it."""

    def __init__(self, state: JobState, clock: FakeClock, *, index: int = 0) -> None:
        self.state, self.index, self._clock = state, index, clock
        self.flags = self
        self.calls: list[str] = []

    def adopt_worker(self) -> int | None:
        return next(iter(sorted(self.state.adoptable)), None)

    def wait_for(self, condition: object, *, timeout_seconds: float) -> None:
        self._clock.advance(timeout_seconds)

    def finish(self) -> None:
        self.calls.append("finish")

    def leave(self) -> None:
        self.calls.append("leave")

    def require_connected(self) -> None: ...

    def set(self, index: int, value: bool) -> None: ...


class Job:
    """The part of one worker in a job whose state does not change, and the session of that worker."""

    def __init__(self, state: JobState, *, index: int = 0) -> None:
        self.clock = FakeClock()
        self.client = Client(state, self.clock, index=index)
        self.is_chief, self.stop_requested = index == 0, False
        self.settings = JobConfig(chief_timeout_seconds=30.0)
        self.state = TrainState()
        self.adopted: list[int] = []

    def settle(self) -> None: ...

    def adopt_worker(self, number: int) -> None:
        self.adopted.append(number)

    def has_more(self, ended_by: str) -> bool:
        part: Any = self
        return JobEnd(part).has_more(part, cast("Any", ended_by), while_waiting=lambda: None)


LOST = JobState(num_workers=2, members=(JobMember(role="worker", index=0),), adoptable=frozenset({1}))


def test_a_chief_whose_input_has_ended_adopts_a_worker_that_is_lost_later(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(replace(LOST, adoptable=frozenset()))

    def lose(condition: object, *, timeout_seconds: float) -> None:
        job.client.state = LOST

    monkeypatch.setattr(job.client, "wait_for", lose)
    assert job.has_more("data")
    assert (job.adopted, job.client.calls) == ([1], ["finish"])


def test_a_chief_that_was_stopped_adopts_no_worker() -> None:
    job = Job(LOST)
    assert not job.has_more("stop")
    assert (job.adopted, job.client.calls) == ([], ["leave"])
    assert job.clock.monotonic() - FakeClock().monotonic() == pytest.approx(30.0)


@pytest.mark.parametrize("chief_lives", [True, False])
def test_a_worker_waits_for_a_lost_chief_as_long_as_the_job_allows(chief_lives: bool) -> None:
    members = [JobMember(role="worker", index=index) for index in range(0 if chief_lives else 1, 2)]
    job = Job(JobState(num_workers=2, members=tuple(members)), index=1)
    if chief_lives:
        real = job.client.wait_for

        def end(condition: object, *, timeout_seconds: float) -> None:
            real(condition, timeout_seconds=timeout_seconds)
            job.client.state = replace(job.client.state, ended=job.clock.monotonic() >= FakeClock().monotonic() + 90)

        job.client.wait_for = end  # type: ignore[method-assign]
    assert not job.has_more("data")
    waited = job.clock.monotonic() - FakeClock().monotonic()
    assert waited == pytest.approx(90.0 if chief_lives else 30.0)
