"""`RequestLog`: writes answered requests in the background; the server never waits for it."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, NamedTuple

from monolith.clock import SystemClock
from monolith.observe import MetricClient
from monolith.online.joiner.endpoints import kafka_place
from monolith.serving.request_log.records import records_of
from monolith.serving.request_log.rolled_files import RolledFiles
from monolith.serving.request_log.sampling import is_sampled
from monolith.serving.request_log.topic import Topic
from monolith.serving.request_log.waiting import WaitingItems

if TYPE_CHECKING:
    from monolith.clock import Clock
    from monolith.serving.request_log.answered import AnsweredRequest
    from monolith.serving.request_log.config import RequestLogConfig
    from monolith.serving.request_log.sink import RecordSink

__all__ = ["RequestLog"]

_log = logging.getLogger(__name__)

_IDLE_SECONDS = 0.5
"""Interval at which the sink is flushed while idle."""
_CLOSE_SECONDS = 5.0
"""Time to write waiting requests at shutdown."""
_SAY_AGAIN_SECONDS = 600.0
"""Interval after which the same warning is repeated."""


class _Waiting(NamedTuple):
    request: AnsweredRequest
    time_ms: int


class RequestLog:
    """Log of a share of the answered requests, written in a background thread. Any thread may call `answered`.

    No error reaches a caller: dropped records are counted as ``request_log_dropped``, by reason, and reported once in
    the process log until records are written again.

    Args:
        options: Settings.
        metrics: Client for the counters; by default with the prefix of the process.
        clock: Clock of this machine; None: the system clock.

    Raises:
        OpError: the destination is not writable; the message gives the reason.
    """

    def __init__(
        self, options: RequestLogConfig, *, metrics: MetricClient | None = None, clock: Clock | None = None
    ) -> None:
        self.options = options
        self._metrics = MetricClient() if metrics is None else metrics
        self._clock = clock or SystemClock()
        self._waiting: WaitingItems[_Waiting] = WaitingItems(options.queue_bytes)
        self._said: dict[str, float] = {}
        self._said_lock = threading.Lock()
        self._sink = self._open_sink()
        self._thread = threading.Thread(target=self._run, name="request-log", daemon=True)
        self._thread.start()

    def answered(self, request: AnsweredRequest) -> None:
        """Submits a request if it is sampled. Neither blocks nor raises."""
        if not is_sampled(request.request_id, self.options.share):
            return
        try:
            is_taken = self._waiting.offer(_Waiting(request, int(self._clock.now() * 1000)), request.size_bytes)
        except Exception as error:  # noqa: BLE001 - must not end a model thread
            self._lose(request.num_examples, "unreadable", f"a request of model {request.model!r}: {error}")
            return
        if not is_taken:
            self._lose(request.num_examples, "queue_full", "more requests wait to be written than queue_bytes holds")

    def close(self) -> None:
        """Writes waiting requests, for a few seconds at most, and stops the thread. Idempotent."""
        self._waiting.close()
        self._thread.join(_CLOSE_SECONDS + _IDLE_SECONDS)
        for each in self._waiting.drop():
            self._lose(each.request.num_examples, "closed", "the writer was stuck when the server ended")

    def _open_sink(self) -> RecordSink:
        options = self.options
        topic = kafka_place(options.place)
        if topic is not None:
            return Topic(topic, self._told, most_bytes=options.queue_bytes, settings=options.kafka)
        return RolledFiles(
            options.place,
            self._told,
            roll_bytes=options.roll_bytes,
            roll_seconds=options.roll_seconds,
            clock=self._clock,
        )

    def _run(self) -> None:
        while (taken := self._waiting.take(_IDLE_SECONDS)) is not None:
            for each in taken:
                self._write(each)
            try:
                self._sink.flush()
            except Exception as error:  # noqa: BLE001 - the thread must outlive any error
                self._lose(0, "not_written", str(error))
        self._sink.close(_CLOSE_SECONDS)

    def _write(self, waiting: _Waiting) -> None:
        request = waiting.request
        try:
            records = records_of(request, time_ms=waiting.time_ms, item_column=self.options.item_column)
        except Exception as error:  # noqa: BLE001 - later requests must still be written
            self._lose(request.num_examples, "unreadable", f"a request of model {request.model!r}: {error}")
            return
        self._sink.append(request.request_id, records)

    def _told(self, count: int, error: Exception | None) -> None:
        if error is not None:
            self._lose(count, "not_written", str(error))
            return
        self._metrics.emit_counter("request_log_records", count)
        with self._said_lock:
            was_away = self._said.pop("not_written", None)
        if was_away is not None:
            _log.warning("request log: records are written again to %s", self.options.place)

    def _lose(self, count: int, reason: str, why: str) -> None:
        self._metrics.emit_counter("request_log_dropped", count, {"reason": reason})
        now = self._clock.monotonic()
        with self._said_lock:
            is_new = now - self._said.get(reason, -_SAY_AGAIN_SECONDS) >= _SAY_AGAIN_SECONDS
            if is_new:
                self._said[reason] = now
        if is_new:
            _log.warning(
                "request log: %d records are lost, and further ones are counted as request_log_dropped: %s", count, why
            )
