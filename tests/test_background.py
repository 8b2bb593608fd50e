"""Threads that repeat a call survive its errors and end when asked; pauses follow their formula."""

from __future__ import annotations

import ast
import itertools
import logging
import math
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolith import background
from monolith.background import END, Backoff, End, PeriodicThread

ENDS_HANGS = 60.0
HOUR = 3600.0

Make = Callable[..., PeriodicThread]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes threads that end with the test."""
    made: list[PeriodicThread] = []

    def thread(call: Callable[[], float | End | None], every: float | None = 0.0, **options: Any) -> PeriodicThread:
        made.append(PeriodicThread(call, every=every, name=f"test-{len(made)}", **options))
        return made[-1]

    yield thread
    for each in made:
        assert each.close(ENDS_HANGS)


class Answers:
    """A call that gives these answers, or raises them, and then ends the thread."""

    def __init__(self, *answers: float | BaseException | None) -> None:
        self._answers = iter(answers)
        self.calls = 0

    def __call__(self) -> float | End | None:
        self.calls += 1
        answer = next(self._answers, END)
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Waits(threading.Event):
    """Returns from every wait at once, and records how long it would have been."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout)
        return True


def waits_of(thread: PeriodicThread, *, after: float | None = 0.0) -> list[float | None]:
    """Runs a thread to its end without waiting; returns its waits, from the first call on."""
    waits = thread._woken = Waits()
    thread.start(after=after)
    thread.join(ENDS_HANGS)
    assert not thread.is_alive()
    return waits.seconds


class TestPeriodicThread:
    def test_the_call_is_repeated_after_the_period_or_the_pause_that_it_returns(self, make: Make) -> None:
        assert waits_of(make(Answers(None, 3.0, None, 0.0), every=7.0)) == [0.0, 7.0, 3.0, 7.0, 0.0]
        assert waits_of(make(Answers(None), every=7.0), after=5.0) == [5.0, 7.0]
        assert waits_of(make(Answers(None), every=None), after=None) == [None, None]

    def test_an_error_does_not_end_it_and_is_reported_without_what_the_call_had_in_use(self, make: Make) -> None:
        error = ZeroDivisionError("a bug")
        call = Answers(error, None)
        thread = make(call, every=7.0)
        errors = [thread.last_error]
        assert waits_of(thread) == [0.0, 7.0, 7.0]
        assert call.calls == 3
        assert [*errors, thread.last_error] == [None, error]
        assert error.__traceback__ is None

    def test_the_pauses_after_errors_grow_until_a_call_succeeds(self, make: Make) -> None:
        error = OSError("away")
        call = Answers(error, error, error, None, error)
        thread = make(call, every=7.0, backoff=Backoff(1.0, 3.0))
        assert waits_of(thread) == [0.0, 1.0, 2.0, 3.0, 7.0, 1.0]

    def test_each_message_is_logged_once_with_its_traceback(self, make: Make, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO):
            waits_of(make(Answers(OSError("a"), OSError("b"), OSError("a"), ValueError("a")), every=7.0))
            waits_of(make(Answers(OSError("a")), every=None))
        assert [(record.levelname, record.getMessage(), bool(record.exc_info)) for record in caplog.records] == [
            ("ERROR", "thread test-0 failed, next in 7 s: OSError('a')", True),
            ("ERROR", "thread test-0 failed, next in 7 s: OSError('b')", True),
            ("INFO", "thread test-0 failed, next in 7 s: OSError('a')", False),
            ("ERROR", "thread test-0 failed, next in 7 s: ValueError('a')", True),
            ("ERROR", "thread test-1 failed, next when woken: OSError('a')", True),
        ]
        assert "in __call__" in caplog.text

    def test_messages_that_never_repeat_take_limited_memory(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(background, "_MOST_MESSAGES", 3)
        thread = make(Answers(*(OSError(str(number)) for number in range(10))))
        waits_of(thread)
        assert len(thread._logged) <= 3

    def test_the_error_callback_receives_every_error_and_may_fail_too(
        self, make: Make, caplog: pytest.LogCaptureFixture
    ) -> None:
        errors: list[Exception] = []

        def hear(error: Exception) -> None:
            errors.append(error)
            raise RuntimeError("another bug")

        first, second = OSError("a"), OSError("b")
        thread = make(Answers(first, second), on_error=hear)
        waits_of(thread)
        assert errors == [first, second]
        assert thread.last_error is second
        assert "thread test-0: its error could not be handled" in caplog.text

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_an_exit_ends_it_and_is_logged(self, make: Make, caplog: pytest.LogCaptureFixture) -> None:
        error = SystemExit(3)
        call = Answers(error, None)
        thread = make(call)
        waits_of(thread)
        assert (call.calls, thread.last_error) == (1, error)
        assert "thread test-0 is ended by SystemExit(3)" in caplog.messages

    def test_a_wake_begins_the_next_call(self, make: Make) -> None:
        called = threading.Semaphore(0)
        thread = make(called.release, every=None)
        thread.start(after=None)
        for _ in range(3):
            assert not called.acquire(blocking=False)
            thread.wake()
            assert called.acquire(timeout=ENDS_HANGS)

    def test_a_wake_during_a_call_is_not_lost(self, make: Make) -> None:
        begun, may_end = threading.Semaphore(0), threading.Event()

        def call() -> None:
            begun.release()
            may_end.wait(ENDS_HANGS)

        thread = make(call, every=None)
        thread.start()
        assert begun.acquire(timeout=ENDS_HANGS)
        thread.wake()
        may_end.set()
        assert begun.acquire(timeout=ENDS_HANGS)

    @pytest.mark.parametrize("every", [HOUR, None])
    def test_closing_ends_its_wait(self, make: Make, every: float | None) -> None:
        thread = make(lambda: None, every=every)
        thread.start()
        assert thread.is_alive()
        assert thread.close()
        assert thread.close()
        assert thread.closed.is_set()

    def test_closing_waits_for_the_call_as_long_as_allowed(self, make: Make) -> None:
        begun, may_end = threading.Event(), threading.Event()

        def call() -> None:
            begun.set()
            may_end.wait(ENDS_HANGS)

        thread = make(call)
        thread.start()
        assert begun.wait(ENDS_HANGS)
        assert not thread.close(0.001)
        may_end.set()
        assert thread.close(ENDS_HANGS)

    def test_its_own_call_may_close_it(self, make: Make) -> None:
        answers: list[bool] = []
        thread: PeriodicThread = make(lambda: answers.append(thread.close()))
        thread.start()
        thread.join(ENDS_HANGS)
        assert answers == [False]
        assert thread.close()

    def test_one_that_was_not_started_is_closed(self, make: Make) -> None:
        assert make(lambda: None).close()

    def test_the_process_waits_only_for_one_that_is_no_daemon(self, make: Make) -> None:
        assert make(lambda: None).daemon
        assert not make(lambda: None, daemon=False).daemon


class TestBackoff:
    @pytest.mark.parametrize(("first", "longest", "factor"), [(0.1, 5.0, 2.0), (1.0, 10.0, 3.0), (0.2, 0.2, 1.0)])
    def test_pauses_are_powers_of_the_factor_up_to_the_longest(
        self, first: float, longest: float, factor: float
    ) -> None:
        backoff = Backoff(first, longest, factor=factor)
        pauses = np.array([backoff.next() for _ in range(20)], dtype=np.float64)
        expected = np.minimum(np.float64(first) * np.float64(factor) ** np.arange(20), np.float64(longest))
        np.testing.assert_allclose(pauses, expected, rtol=1e-15)

    def test_it_grows_without_end_where_nothing_limits_it(self) -> None:
        backoff = Backoff(1.0, math.inf)
        assert [backoff.next() for _ in range(1100)][-1] == math.inf

    def test_the_first_pause_is_limited_too(self) -> None:
        assert Backoff(7.0, 3.0).next() == 3.0

    def test_a_reset_begins_again(self) -> None:
        backoff = Backoff(1.0, 10.0)
        assert [backoff.next(), backoff.next()] == [1.0, 2.0]
        backoff.reset()
        assert backoff.next() == 1.0

    def test_an_iteration_has_one_item_for_each_try_and_no_pause_after_the_last(self) -> None:
        backoff = Backoff(1.0, 3.0, tries=4)
        assert list(backoff) == list(backoff) == [1.0, 2.0, 3.0, None]
        assert list(Backoff(1.0, 3.0, tries=1)) == [None]
        assert list(itertools.islice(Backoff(1.0, 3.0), 4)) == [1.0, 2.0, 3.0, 3.0]

    def test_jitter_draws_from_zero_to_the_pause(self, monkeypatch: pytest.MonkeyPatch) -> None:
        drawn: list[tuple[float, float]] = []

        def draw(low: float, high: float) -> float:
            drawn.append((low, high))
            return high / 4

        monkeypatch.setattr(random, "uniform", draw)
        backoff = Backoff(1.0, 4.0, jitter="full")
        assert [backoff.next() for _ in range(4)] == [0.25, 0.5, 1.0, 1.0]
        assert drawn == [(0, 1.0), (0, 2.0), (0, 4.0), (0, 4.0)]

    @pytest.mark.parametrize("wrong", [{"first": -1.0}, {"longest": -1.0}, {"factor": 0.5}, {"tries": 0}])
    def test_a_wrong_schedule_is_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=r"Backoff: expected pauses >= 0, factor >= 1 and tries >= 1, got first="):
            Backoff(**{"first": 1.0, "longest": 2.0, **wrong})


def test_every_thread_of_the_package_has_a_name(project_root: Path) -> None:
    threads = 0
    for path in sorted((project_root / "src" / "monolith").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)) if "Thread(" in source else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("Thread", "PeriodicThread"):
                threads += 1
                assert "name" in {keyword.arg for keyword in node.keywords}, f"{path}:{node.lineno}"
    assert threads > 30
