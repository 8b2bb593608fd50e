"""`RequestLog`: writes answered requests in the background; the server never waits for it."""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
from collections import deque
from dataclasses import field
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from monolith.background import END, End, PeriodicThread
from monolith.clock import Clock, SystemClock
from monolith.config import Config, config, require_positive
from monolith.observe import MetricClient
from monolith.online.joiner import kafka_place
from monolith.serving.request_log.records import AnsweredRequest, records_of
from monolith.serving.request_log.sinks import RolledFiles, Topic

if TYPE_CHECKING:
    from collections.abc import Mapping


@config
class RequestLogConfig(Config):
    """Destination of the log, share of logged requests, and sizes."""

    place: str
    """A folder, which several servers may share, or ``kafka://HOST:PORT[,HOST:PORT]/TOPIC``."""
    share: float = 0.01
    """Fraction of logged requests, sampled by request id: requests with the same id are all logged or none."""
    item_column: str | None = None
    """Column whose first id names the item of an example, as actions do; None: the number of the example in its
    request, from 0 on."""
    queue_bytes: int = 64 << 20
    """Maximum size of requests waiting to be written; further ones are not logged."""
    roll_bytes: int = 256 << 20
    """Size at which a new file is started."""
    roll_seconds: float = 3600.0
    """Age at which a new file is started."""
    kafka: Mapping[str, str] = field(default_factory=dict)
    """Further settings of librdkafka, such as ``security.protocol``."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"request log: share must be above 0 and at most 1, got {self.share:g}")
        require_positive(self, "queue_bytes", "roll_bytes", "roll_seconds")
        is_topic = kafka_place(self.place) is not None
        if not is_topic and (not self.place or "://" in self.place):
            raise ValueError(
                f"request log: place must be a folder of this machine or kafka://HOST:PORT/TOPIC, got {self.place!r}"
            )
        if self.kafka and not is_topic:
            raise ValueError(f"request log: kafka has settings, but {self.place!r} is no topic")
        if self.item_column == "":
            raise ValueError("request log: item_column must be the name of a column, got ''")


_log = logging.getLogger(__name__)

_IDLE_SECONDS = 0.5
"""Interval at which the sink is flushed while idle."""
_CLOSE_SECONDS = 5.0
"""Time to write waiting requests at shutdown."""
_WARN_AGAIN_SECONDS = 600.0
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
        self._waiting: BoundedBuffer[_Waiting] = BoundedBuffer(options.queue_bytes)
        self._warned_at: dict[str, float] = {}
        self._warned_lock = threading.Lock()
        self._sink = self._open_sink()
        self._thread = PeriodicThread(self._write_waiting, every=0.0, name="request-log")
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
        for waiting in self._waiting.take(0.0) or ():
            self._lose(waiting.request.num_examples, "closed", "the writer was stuck when the server ended")

    def _open_sink(self) -> RolledFiles | Topic:
        options = self.options
        topic = kafka_place(options.place)
        if topic is not None:
            return Topic(topic, self._note_outcome, most_bytes=options.queue_bytes, settings=options.kafka)
        return RolledFiles(
            options.place,
            self._note_outcome,
            roll_bytes=options.roll_bytes,
            roll_seconds=options.roll_seconds,
            clock=self._clock,
        )

    def _write_waiting(self) -> End | None:
        taken = self._waiting.take(_IDLE_SECONDS)
        for waiting in taken or ():
            self._write(waiting)
        try:
            self._sink.flush() if taken is not None else self._sink.close(_CLOSE_SECONDS)
        except Exception as error:  # noqa: BLE001 - as `_write`: it is reported once, not at each flush
            self._lose(0, "not_written", str(error))
        return END if taken is None else None

    def _write(self, waiting: _Waiting) -> None:
        request = waiting.request
        try:
            records = records_of(request, time_ms=waiting.time_ms, item_column=self.options.item_column)
        except Exception as error:  # noqa: BLE001 - later requests must still be written
            self._lose(request.num_examples, "unreadable", f"a request of model {request.model!r}: {error}")
            return
        self._sink.append(request.request_id, records)

    def _note_outcome(self, count: int, error: Exception | None) -> None:
        if error is not None:
            self._lose(count, "not_written", str(error))
            return
        self._metrics.emit_counter("request_log_records", count)
        with self._warned_lock:
            was_away = self._warned_at.pop("not_written", None)
        if was_away is not None:
            _log.warning("request log: records are written again to %s", self.options.place)

    def _lose(self, count: int, reason: str, why: str) -> None:
        self._metrics.emit_counter("request_log_dropped", count, {"reason": reason})
        now = self._clock.monotonic()
        with self._warned_lock:
            is_new = now - self._warned_at.get(reason, -_WARN_AGAIN_SECONDS) >= _WARN_AGAIN_SECONDS
            if is_new:
                self._warned_at[reason] = now
        if is_new:
            _log.warning(
                "request log: %d records are lost, and further ones are counted as request_log_dropped: %s", count, why
            )


T = TypeVar("T")


class BoundedBuffer(Generic[T]):
    """Queue with one consumer. Any thread may `offer`; it never blocks except for the lock.

    `most_bytes` limits queued items and those taken last, together.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._changed = threading.Condition()
        self._items: deque[T] = deque()
        self._waiting_bytes = self._taken_bytes = 0
        self._is_closed = False

    def offer(self, item: T, size_bytes: int) -> bool:
        """Adds an item; returns False if it does not fit, or after `close`. An item above the limit never fits."""
        with self._changed:
            held = self._waiting_bytes + self._taken_bytes
            if self._is_closed or held + size_bytes > self._most_bytes:
                return False
            self._items.append(item)
            self._waiting_bytes += size_bytes
            self._changed.notify()
            return True

    def take(self, seconds: float) -> list[T] | None:
        """Returns queued items, and releases those taken before; empty after a timeout, None once closed and empty."""
        with self._changed:
            self._taken_bytes = 0
            self._changed.wait_for(lambda: self._items or self._is_closed, seconds)
            taken = list(self._items)
            self._items.clear()
            self._taken_bytes, self._waiting_bytes = self._waiting_bytes, 0
            return None if self._is_closed and not taken else taken

    def close(self) -> None:
        """Closes the queue to new items; queued ones can still be taken."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


LONGEST_ID = 256
"""Maximum bytes of a request id; a longer one is replaced by a generated id."""
_SCALE = 1 << 64


def request_id_of(client_id: bytes | None) -> bytes:
    """Returns the id given by the client, or a unique generated one."""
    if client_id and len(client_id) <= LONGEST_ID:
        return client_id
    return secrets.token_hex(16).encode()


def is_sampled(request_id: bytes, share: float) -> bool:
    """Returns whether a request is in the sampled share; a larger share includes the requests of a smaller one.

    The result depends only on the id, so that all servers sample the same requests and the parts of a request stay
    together.

    >>> sum(is_sampled(b"request-%d" % number, 0.25) for number in range(1000))
    245
    """
    drawn = hashlib.blake2b(request_id, digest_size=8, person=b"request-log").digest()
    return int.from_bytes(drawn, "little") < share * _SCALE
