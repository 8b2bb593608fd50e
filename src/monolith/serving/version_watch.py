"""Who looks for newer versions while a model answers: one thread, for exports, checkpoints and rows of shards alike."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

from monolith.errors import DeadlineExceededError, OpError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["VersionWatch"]

_log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""Between two looks for newer versions."""
_LONGEST_PAUSE_SECONDS = 10.0
"""Between two tries of a version whose files are away: each try may read much of them."""
_LOOK_SECONDS = 0.05
"""Between two checks of the stop request while a version is taken up."""
TAKE_UP_SECONDS = 3600.0
"""For one version: one that takes longer is refused, and newer ones are tried."""
CLOSE_SECONDS = 10.0
"""How long `VersionWatch.close` waits for a version that is being taken up: its files may be on a mount that hangs."""

Version = TypeVar("Version")


class VersionWatch(Generic[Version]):
    """Takes up newer versions, in threads of its own. Any thread may call it; to be closed, also if it never started.

    Each version is taken up in a daemon thread, which nothing waits for without a limit: reading it may hang. A version
    that cannot be used is tried once, and refused. Where the storage does not answer, nothing is refused: it is asked
    again.

    Args:
        subject: What logs call that which is served.
        wanted: The version that is to be taken up next, or that would be if it were not refused; None: none is.
        take_up: Serves a version. What it raises is why it is not served; `UnavailableError`: not yet.
        polls: Whether newer ones may come by themselves; else it looks when it is woken.
    """

    def __init__(
        self,
        subject: str,
        *,
        wanted: Callable[[], Version | None],
        take_up: Callable[[Version], None],
        polls: bool = True,
    ) -> None:
        self._subject = subject
        self._wanted = wanted
        self._take_up = take_up
        self._polls = polls
        self._lock = threading.Lock()
        self._refused: dict[Version, str] = {}
        self._away: str | None = None
        """Why the storage could not be asked, at the last look."""
        self._kept_out: str | None = None
        """Why the version that is wanted is refused."""
        self._pause_seconds = POLL_SECONDS
        self.stopped = threading.Event()
        """Set when it is closed, for who waits while a version is taken up."""
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None
        self._attempt: _Attempt | None = None
        """The version that is being taken up, and waited for."""

    def start(self) -> None:
        """Begins to look."""
        self._thread = threading.Thread(target=self._run, name=f"monolith-versions-{self._subject}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Looks at once."""
        self._woken.set()

    def close(self) -> None:
        """Ends. A version that is being taken up has `CLOSE_SECONDS`, then it is left behind. Again: does nothing."""
        self.stopped.set()
        self._woken.set()
        if self._thread is None:
            return
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            _log.warning(
                "%s: a version is still being read %g s after the end was asked for, and is left behind",
                self._subject,
                CLOSE_SECONDS,
            )

    @property
    def is_given_up(self) -> bool:
        """For `take_up`, before its version is served: whether the watch has stopped waiting for it."""
        attempt = self._attempt
        return self.stopped.is_set() or attempt is None or attempt.thread is not threading.current_thread()

    @property
    def problem(self) -> str | None:
        """Why something newer is not served; None: there is nothing newer, or it is about to be."""
        return self._away or self._kept_out

    @property
    def refused(self) -> Mapping[Version, str]:
        """Versions that are not tried any more, and why."""
        with self._lock:
            return dict(self._refused)

    def refuse(self, version: Version, why: str) -> None:
        """Notes that a version is not to be tried."""
        with self._lock:
            self._refused[version] = why

    def forgive(self, version: Version | None = None) -> None:
        """Lets a version be tried again; None: all of them."""
        with self._lock:
            if version is None:
                self._refused.clear()
            else:
                self._refused.pop(version, None)

    # In the thread

    def _run(self) -> None:
        while not self.stopped.is_set():
            self._woken.clear()
            away = None
            try:
                self._look()
                self._pause_seconds = POLL_SECONDS
            except OpError as error:
                away = error.message
                if away != self._away and not self.stopped.is_set():
                    _log.warning("%s: newer versions cannot be looked at, for now: %s", self._subject, error)
            except Exception:  # noqa: BLE001 - what is served goes on; the log says what happened
                _log.exception("%s: looking for newer versions failed", self._subject)
            self._away = away
            self._woken.wait(self._pause_seconds if self._polls or away is not None else None)

    def _look(self) -> None:
        """Takes up what is wanted until nothing is, or nothing that has not been tried now."""
        tried: Version | None = None
        while not self.stopped.is_set():
            version = self._wanted()
            kept_out = None if version is None else self.refused.get(version)
            self._kept_out = kept_out
            if version is None or version == tried or kept_out is not None:
                return
            tried = version
            self._try(version)

    def _try(self, version: Version) -> None:
        try:
            self._take_up_in_time(version)
        except UnavailableError:
            self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)
            raise
        except Exception as error:  # noqa: BLE001 - a task may raise anything; what is served goes on
            told = error.message if isinstance(error, OpError) else f"{type(error).__name__}: {error}"
            _log.error("%s: version %s is not served, what was served before is: %s", self._subject, version, told)
            self.refuse(version, told)

    def _take_up_in_time(self, version: Version) -> None:
        """Takes a version up in a thread that is left behind if it hangs.

        Raises:
            DeadlineExceededError: it took too long.
            Exception: what `take_up` raised.
        """
        attempt = _Attempt(lambda: self._take_up(version), f"monolith-take-up-{self._subject}")
        self._attempt = attempt
        attempt.thread.start()
        end = time.monotonic() + TAKE_UP_SECONDS
        while not attempt.ended.wait(_LOOK_SECONDS):
            if self.stopped.is_set():  # `close` waits for this thread, with a limit
                attempt.ended.wait(CLOSE_SECONDS)
                break
            if time.monotonic() > end:
                break
        self._attempt = None
        if attempt.error is not None:
            raise attempt.error
        if not attempt.ended.is_set() and not self.stopped.is_set():
            raise DeadlineExceededError(
                f"it could not be read and tried within {TAKE_UP_SECONDS:g} s; look at the storage that it is on"
            )


class _Attempt:
    """A call in a daemon thread."""

    def __init__(self, call: Callable[[], None], name: str) -> None:
        self.ended = threading.Event()
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run, args=(call,), name=name, daemon=True)

    def _run(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - raised again by who waits
            self.error = error
        finally:
            self.ended.set()
