"""The heartbeat of a job, also while it waits for other processes."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Self

from monolith.clock import SystemClock
from monolith.observe.metric_client import MetricClient

if TYPE_CHECKING:
    from monolith.clock import Clock

__all__ = ["HeartBeat"]

_log = logging.getLogger(__name__)

EVERY_SECONDS = 30.0


class HeartBeat:
    """Emits ``training_heart_beat`` with the time: ``type=running`` from the start on, ``type=stopped`` at the end.

    A thread emits while it is open, so that a waiting job is not taken for dead. A context manager, which may be
    entered again.

    Args:
        clock: Source of time.
        every_seconds: Seconds between two heartbeats.
        metrics: Client that emits them.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        every_seconds: float = EVERY_SECONDS,
        *,
        metrics: MetricClient | None = None,
    ) -> None:
        if not every_seconds > 0:
            raise ValueError(f"HeartBeat: every_seconds must be > 0, got {every_seconds}")
        self.every_seconds = every_seconds
        self._metrics = metrics or MetricClient()
        self._clock = clock or SystemClock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def beat(self) -> None:
        """Emits that training runs."""
        self._metrics.emit_store("training_heart_beat", self._clock.now(), {"type": "running"})

    def start(self) -> None:
        """Emits one heartbeat, and further ones until `stop`."""
        self.beat()
        self._stopped.clear()
        self._thread = threading.Thread(target=self._run, name="training_heart_beat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Emits that training has stopped."""
        thread, self._thread = self._thread, None
        self._stopped.set()
        if thread is not None:
            thread.join()
        self._metrics.emit_store("training_heart_beat", self._clock.now(), {"type": "stopped"})

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._stopped.wait(self.every_seconds):
            try:
                self.beat()
            except Exception as error:  # noqa: BLE001 - without beats a job that trains is taken for dead
                _log.warning("cannot emit the heartbeat of training, next in %g s: %r", self.every_seconds, error)
