"""Polls for newer versions of a served model in a thread, for exports, checkpoints and rows of shards alike."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from monolith.background import Backoff, PeriodicThread
from monolith.errors import DeadlineExceededError, OpError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""Interval of the polls for newer versions."""
_LONGEST_PAUSE_SECONDS = 10.0
"""Maximum interval between two attempts to load a version whose files are unreachable: each may read much data."""
TAKE_UP_SECONDS = 3600.0
"""Maximum time to load one version; one that takes longer is rejected, and newer ones are tried."""
CLOSE_SECONDS = 10.0
"""How long `VersionWatch.close` waits for a version that is being loaded: its files may be on a hanging mount."""

Version = TypeVar("Version")


class VersionWatch(Generic[Version]):
    """Watch that loads newer versions in background threads. Thread-safe. Must be closed, even if it was never started.

    Each version is loaded in a daemon thread, and every wait for that thread is bounded: reading may hang. A version
    that cannot be used is tried once and rejected. While the storage is unreachable, no version is rejected, and the
    watch retries.

    Args:
        subject: Name of the served object, for logs.
        next_version: Returns the version to load next, whether rejected or not; None: none.
        activate: Loads and serves a version. An error rejects the version; `UnavailableError` is retried.
        polls: Whether to poll periodically; else it checks only when woken.
    """

    def __init__(
        self,
        subject: str,
        *,
        next_version: Callable[[], Version | None],
        activate: Callable[[Version], None],
        polls: bool = True,
    ) -> None:
        self._subject = subject
        self._next_version = next_version
        self._activate = activate
        self._polls = polls
        self._lock = threading.Lock()
        self._refused: dict[Version, str] = {}
        self._away: str | None = None
        """Why the storage was unreachable at the last check; None: it was reachable."""
        self._kept_out: str | None = None
        """Why the wanted version was rejected."""
        self._pause_seconds = POLL_SECONDS
        self._backoff = Backoff(2 * POLL_SECONDS, _LONGEST_PAUSE_SECONDS)
        self._thread = PeriodicThread(
            self._poll, every=POLL_SECONDS if polls else None, name=f"monolith-versions-{subject}"
        )
        self.stopped = self._thread.closed
        """Set by `close`; for waits in `activate`."""
        self._attempt: _Attempt | None = None
        """The running load."""

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Checks for newer versions immediately."""
        self._thread.wake()

    def close(self) -> None:
        """Stops the watch.

        Waits up to `CLOSE_SECONDS` for a version that is being loaded, then abandons it. Idempotent.
        """
        self.stopped.set()
        if (attempt := self._attempt) is not None:
            attempt.woken.set()
        if not self._thread.close(CLOSE_SECONDS):
            _log.warning(
                "%s: abandoned a version that was still loading %g s after the watch was closed",
                self._subject,
                CLOSE_SECONDS,
            )

    @property
    def is_given_up(self) -> bool:
        """Whether the watch has stopped waiting for the calling `activate`, which must then not serve its version."""
        attempt = self._attempt
        return self.stopped.is_set() or attempt is None or attempt.thread is not threading.current_thread()

    @property
    def problem(self) -> str | None:
        """Why a newer version is not served; None: there is none, or it is being loaded."""
        return self._away or self._kept_out

    @property
    def refused(self) -> Mapping[Version, str]:
        """Rejected version -> reason."""
        with self._lock:
            return dict(self._refused)

    def refuse(self, version: Version, why: str) -> None:
        """Rejects a version: it is not tried again."""
        with self._lock:
            self._refused[version] = why

    def retry(self, version: Version | None = None) -> None:
        """Allows a rejected version to be tried again; None: all of them."""
        with self._lock:
            if version is None:
                self._refused.clear()
            else:
                self._refused.pop(version, None)

    # In the thread

    def _poll(self) -> float | None:
        try:
            self._look()
        except OpError as error:
            if error.message != self._away and not self.stopped.is_set():
                _log.warning("%s: newer versions cannot be listed, retrying: %s", self._subject, error)
            self._away = error.message
            return self._pause_seconds
        self._away = None
        self._pause_seconds = POLL_SECONDS
        self._backoff.reset()
        return POLL_SECONDS if self._polls else None

    def _look(self) -> None:
        """Loads wanted versions until there is none, or only one already tried."""
        tried: Version | None = None
        while not self.stopped.is_set():
            version = self._next_version()
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
            self._pause_seconds = self._backoff.next()
            raise
        except BaseException as error:  # noqa: BLE001 - a task may raise anything; serving continues
            reason = error.message if isinstance(error, OpError) else f"{type(error).__name__}: {error}"
            _log.error("%s: version %s is not served, what was served before is: %s", self._subject, version, reason)
            self.refuse(version, reason)

    def _take_up_in_time(self, version: Version) -> None:
        """Loads a version in a thread that is abandoned if it hangs."""
        attempt = _Attempt(lambda: self._activate(version), f"monolith-take-up-{self._subject}")
        self._attempt = attempt
        attempt.thread.start()
        attempt.woken.wait(0.0 if self.stopped.is_set() else TAKE_UP_SECONDS)
        if self.stopped.is_set():  # `close` waits for this thread, with a limit
            attempt.thread.join(CLOSE_SECONDS)
        self._attempt = None
        if attempt.error is not None:
            raise attempt.error
        if not attempt.woken.is_set() and not self.stopped.is_set():
            raise DeadlineExceededError(
                f"it could not be read and tried within {TAKE_UP_SECONDS:g} s; check its storage"
            )


class _Attempt:
    """A call in a daemon thread."""

    def __init__(self, call: Callable[[], None], name: str) -> None:
        self.woken = threading.Event()
        """Set when the call has ended, and by `VersionWatch.close`."""
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(call,), name=name, daemon=True)

    def _run(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised again by the waiting thread
            self.error = error
        finally:
            self.woken.set()
