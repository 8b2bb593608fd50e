"""A thread that sends periodic heartbeats, and repairs a registration that the other side has lost."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)


class Heartbeat:
    """Calls ``beat`` at an interval. When that returns False it calls ``repair``, and stops if that returns False too.

    A beat or a repair that raises is retried after the shorter retry interval. The thread is a daemon; `stop` ends it
    and waits for it, and may be called from any thread, also from within ``repair``.
    """

    def __init__(self, beat: Callable[[], bool], repair: Callable[[], bool], *, name: str) -> None:
        self._beat = beat
        self._repair = repair
        self._stopped = threading.Event()
        self._name = name
        self._thread: threading.Thread | None = None

    def start(self, interval_seconds: float, retry_seconds: float) -> None:
        """Starts the thread; the first beat comes after one interval."""
        self._thread = threading.Thread(
            target=self._run, args=(interval_seconds, retry_seconds), name=f"heartbeat-{self._name}", daemon=True
        )
        self._thread.start()

    def is_beating(self) -> bool:
        """Returns whether the heartbeat was started and has not stopped."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """Stops the heartbeat; returns when the thread has ended."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self, interval_seconds: float, retry_seconds: float) -> None:
        pause = interval_seconds
        while not self._stopped.wait(pause):
            try:
                if not self._beat() and not self._repair():
                    return
                pause = interval_seconds
            except Exception as err:  # noqa: BLE001 - whatever it is: without heartbeats a service would be dropped
                _log.warning("heartbeat of %s failed, next in %.1f s: %r", self._name, retry_seconds, err)
                pause = retry_seconds
