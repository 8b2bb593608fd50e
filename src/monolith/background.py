"""Threads that repeat a call, and the pauses between the attempts of a call that fails."""

from __future__ import annotations

import enum
import itertools
import logging
import random
import threading
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_log = logging.getLogger(__name__)

_MOST_MESSAGES = 100
"""Maximum number of remembered messages of errors: some contain a time or a number that is always new."""


class Backoff:
    """The pauses between attempts, which grow by a factor up to a limit. It has no clock: the caller waits.

    Not thread-safe.

    >>> list(Backoff(0.5, 3.0, tries=5))
    [0.5, 1.0, 2.0, 3.0, None]

    Args:
        first: The first pause, in seconds.
        longest: Limit of every pause.
        factor: From one pause to the next; 1: all pauses are equal.
        jitter: ``full``: each pause is random, from 0 to what it would be, so that many processes do not all try again
            at the same time.
        tries: Number of attempts of an iteration; None: no limit.
    """

    def __init__(
        self,
        first: float,
        longest: float,
        *,
        factor: float = 2.0,
        jitter: Literal["full"] | None = None,
        tries: int | None = None,
    ) -> None:
        if min(first, longest) < 0 or factor < 1 or (tries is not None and tries < 1):
            raise ValueError(
                f"Backoff: expected pauses >= 0, factor >= 1 and tries >= 1, got first={first}, longest={longest},"
                f" factor={factor}, tries={tries}"
            )
        self._first, self._longest, self._factor = first, longest, factor
        self._jitter = jitter
        self._tries = tries
        self._pause = min(first, longest)

    def next(self) -> float:
        """Returns the seconds until the next attempt, after one that failed."""
        pause = self._pause
        self._pause = min(pause * self._factor, self._longest)
        return pause if self._jitter is None else random.uniform(0, pause)  # noqa: S311 - spreads load, guards nothing

    def reset(self) -> None:
        """Begins with the first pause again, after an attempt that succeeded."""
        self._pause = min(self._first, self._longest)

    def __iter__(self) -> Iterator[float | None]:
        """Yields once for each attempt: the pause if it fails, or None for the last one."""
        self.reset()
        for _ in itertools.count() if self._tries is None else range(self._tries - 1):
            yield self.next()
        yield None


class End(enum.Enum):
    """Type of `END`."""

    END = enum.auto()


END: Final = End.END
"""What the call of a `PeriodicThread` returns to end the thread."""


class PeriodicThread(threading.Thread):
    """A thread that repeats a call until it is closed.

    An exception of the call does not end the thread: it is logged, with its traceback when its message is new, and
    stored in `last_error`, and the call is repeated after a pause. A `BaseException` such as `SystemExit` ends it.

    Args:
        call: Returns the seconds until the next call; None: `every`; `END` ends the thread.
        every: Seconds from the end of a call to the next one; None: the next one begins when `wake` is called.
        name: Name of the thread.
        on_error: Called with an exception of the call, after it was logged.
        backoff: Pauses after exceptions; None: `every`.
        daemon: Whether the process may end while the thread runs.
    """

    def __init__(
        self,
        call: Callable[[], float | End | None],
        *,
        every: float | None,
        name: str,
        on_error: Callable[[Exception], None] | None = None,
        backoff: Backoff | None = None,
        daemon: bool = True,
    ) -> None:
        super().__init__(name=name, daemon=daemon)
        self._call = call
        self._every = every
        self._on_error = on_error
        self._backoff = backoff
        self._after: float | None = 0.0
        self._woken = threading.Event()
        self._logged: set[str] = set()
        self.closed = threading.Event()
        """Set by `close`; for waits in the call."""
        self.last_error: BaseException | None = None
        """The last exception of the call; None: there was none."""

    def start(self, *, after: float | None = 0.0) -> None:
        """Starts the thread.

        Args:
            after: Seconds until the first call; None: it begins when `wake` is called.
        """
        self._after = after
        super().start()

    def wake(self) -> None:
        """Makes the next call begin now, or when the current one is over."""
        self._woken.set()

    def close(self, timeout: float | None = None) -> bool:
        """Makes the thread end after the current call, and waits for that, except in the thread itself. Idempotent.

        Args:
            timeout: Maximum seconds of the wait; None: no limit.

        Returns:
            Whether the thread has ended, or was not started.
        """
        self.closed.set()
        self._woken.set()
        if self.ident is not None and self is not threading.current_thread():
            self.join(timeout)
        return not self.is_alive()

    def run(self) -> None:
        """Repeats the call; `start` starts the thread that runs it."""
        pause = self._after
        try:
            while True:
                self._woken.wait(pause)
                self._woken.clear()
                if self.closed.is_set():
                    return
                answer = self._next()
                if answer is END:
                    return
                pause = self._every if answer is None else answer
        finally:
            del self._call, self._on_error  # which may refer to the owner of this thread, and it to the thread

    def _next(self) -> float | End | None:
        """Calls once; returns what the call returns, or the pause after its exception."""
        try:
            answer = self._call()
        except Exception as error:  # noqa: BLE001 - without its thread the process would fail later, elsewhere
            pause = None if self._backoff is None else self._backoff.next()
            self._report(error, self._every if pause is None else pause)
            return pause
        except BaseException as error:
            self.last_error = error
            _log.critical("thread %s is ended by %r", self.name, error)  # Python does not report SystemExit
            raise
        if self._backoff is not None:
            self._backoff.reset()
        return answer

    def _report(self, error: Exception, pause: float | None) -> None:
        message = repr(error)
        is_new = message not in self._logged
        if len(self._logged) >= _MOST_MESSAGES:
            self._logged.clear()
        self._logged.add(message)
        next_time = "when woken" if pause is None else f"in {pause:g} s"
        level = logging.ERROR if is_new else logging.INFO
        _log.log(level, "thread %s failed, next %s: %s", self.name, next_time, message, exc_info=is_new)
        if self._on_error is not None:
            try:
                self._on_error(error)
            except Exception:  # noqa: BLE001 - as above
                _log.exception("thread %s: its error could not be handled", self.name)
        self.last_error = error.with_traceback(None)  # which would keep all that the call had in use
