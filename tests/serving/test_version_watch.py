"""The watch for newer versions: what cannot be used is tried once, storage that is away is asked again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from monolith.errors import DataLossError, UnavailableError
from monolith.serving import version_watch
from monolith.serving.version_watch import VersionWatch
from serving.server.promoted_models import wait_until


class Served:
    """Numbers that a test brings, and what stands in their way."""

    def __init__(self) -> None:
        self.newest = 1
        self.now = 1
        self.away: str | None = None
        self.errors: dict[int, BaseException] = {}
        self.tried: list[int] = []
        self.stays = False
        """Whether what is taken up is not served, although nothing is wrong."""
        self.looks = threading.Semaphore(0)

    def wanted(self) -> int | None:
        self.looks.release()
        if self.away is not None:
            raise UnavailableError(self.away)
        return self.newest if self.newest > self.now else None

    def activate(self, number: int) -> None:
        self.tried.append(number)
        if number in self.errors:
            raise self.errors[number]
        if not self.stays:
            self.now = number


Watched = tuple[Served, VersionWatch[int]]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Watched]]:
    monkeypatch.setattr(version_watch, "POLL_SECONDS", 0.005)
    made: list[VersionWatch[int]] = []

    def make(*, polls: bool = True) -> Watched:
        served = Served()
        made.append(VersionWatch("model", next_version=served.wanted, activate=served.activate, polls=polls))
        made[-1].start()
        return served, made[-1]

    yield make
    for each in made:
        each.close()


def test_a_problem_of_the_storage_goes_when_it_answers_again(watch: Callable[..., Watched]) -> None:
    served, found = watch()
    served.away = "the storage is away"
    wait_until(lambda: found.problem == "the storage is away")
    served.away = None
    wait_until(lambda: found.problem is None)
    assert served.tried == []


def test_a_version_whose_files_are_unavailable_is_retried(watch: Callable[..., Watched]) -> None:
    served, found = watch()
    served.errors[2] = UnavailableError("its files are away")
    served.newest = 2
    wait_until(lambda: served.tried.count(2) > 1)
    assert (found.problem, found.refused) == ("its files are away", {})
    del served.errors[2]
    wait_until(lambda: served.now == 2)
    wait_until(lambda: found.problem is None)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (DataLossError("it is torn"), "it is torn"),
        (KeyError("user"), "KeyError: 'user'"),
        (SystemExit(3), "SystemExit: 3"),
    ],
)
def test_a_version_that_cannot_be_used_is_tried_once(
    watch: Callable[..., Watched], error: BaseException, told: str
) -> None:
    served, found = watch()
    served.errors[2] = error
    served.newest = 2
    wait_until(lambda: found.problem == told)
    for _ in range(3):
        served.looks.acquire()
    assert (served.tried, found.refused) == ([2], {2: told})
    served.newest = 3
    wait_until(lambda: served.now == 3)
    wait_until(lambda: found.problem is None)


def test_a_refused_version_that_was_taken_away_is_no_problem_any_more(watch: Callable[..., Watched]) -> None:
    served, found = watch()
    served.errors[2] = DataLossError("it is torn")
    served.newest = 2
    wait_until(lambda: found.problem is not None)
    served.newest = 1
    wait_until(lambda: found.problem is None)


def test_a_version_that_is_forgiven_is_tried_again(watch: Callable[..., Watched]) -> None:
    served, found = watch()
    served.errors[2] = DataLossError("it is torn")
    served.newest = 2
    wait_until(lambda: found.problem is not None)
    served.errors.clear()
    found.retry(2)
    wait_until(lambda: served.now == 2)


def test_a_version_that_stays_wanted_is_tried_once_in_a_look(watch: Callable[..., Watched]) -> None:
    served, found = watch(polls=False)
    served.looks.acquire()
    served.newest = 2
    served.stays = True
    found.wake()
    for _ in range(2):
        assert served.looks.acquire(timeout=60)
    assert not served.looks.acquire(timeout=0.05)
    assert served.tried == [2]


def test_one_that_does_not_poll_looks_when_it_is_woken(watch: Callable[..., Watched]) -> None:
    served, found = watch(polls=False)
    served.looks.acquire()
    served.newest = 2
    assert not served.looks.acquire(timeout=0.05)
    found.wake()
    wait_until(lambda: served.now == 2)


def test_a_watch_that_does_not_poll_retries_storage_that_was_unavailable(watch: Callable[..., Watched]) -> None:
    served, found = watch(polls=False)
    served.looks.acquire()
    served.away = "the storage is away"
    found.wake()
    wait_until(lambda: found.problem is not None)
    served.away = None
    wait_until(lambda: found.problem is None)


def test_one_that_never_started_can_be_closed() -> None:
    served = Served()
    found = VersionWatch("model", next_version=served.wanted, activate=served.activate)
    found.close()
    found.close()
    assert found.stopped.is_set()


def test_a_version_that_hangs_is_rejected_and_newer_ones_are_activated(
    watch: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version_watch, "TAKE_UP_SECONDS", 0.1)
    served, watching = watch()
    hangs, late = threading.Event(), []

    def activate(number: int) -> None:
        if number == 2:
            hangs.wait(60)
            late.append(watching.is_given_up)
            return
        served.now = number

    monkeypatch.setattr(watching, "_activate", activate)
    served.newest = 2
    wait_until(lambda: 2 in watching.refused)
    assert "could not be read and tried within 0.1 s" in watching.refused[2]
    served.newest = 3
    wait_until(lambda: served.now == 3)
    hangs.set()
    wait_until(lambda: bool(late))
    assert late == [True]


def test_closing_does_not_wait_for_a_version_that_hangs(
    watch: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(version_watch, "CLOSE_SECONDS", 0.1)
    served, watching = watch()
    begun, hangs = threading.Event(), threading.Event()

    def activate(_: int) -> None:
        begun.set()
        hangs.wait(60)

    monkeypatch.setattr(watching, "_activate", activate)
    served.newest = 2
    assert begun.wait(60)
    watching.close()
    assert watching.is_given_up
    hangs.set()
