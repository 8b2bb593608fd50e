"""`RequestLog`: writes answered requests in the background; the server never waits for it."""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import torch

from monolith.clock import SystemClock
from monolith.data.kafka.client import confluent_kafka
from monolith.data.kafka.quiet_log import new_library_log
from monolith.errors import ResourceExhaustedError, UnavailableError
from monolith.observe import MetricClient
from monolith.online.joiner.endpoints import kafka_place
from monolith.online.joiner.events import impression_record
from monolith.serving.request_log.encoded_requests import SERVED, first_id_of, requested_examples
from monolith.serving.request_log.features import ExampleFeatures
from monolith.serving.request_log.rolled_files import RolledFiles
from monolith.serving.request_log.sampling import is_sampled
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from monolith.clock import Clock
    from monolith.online.joiner.endpoints import KafkaPlace
    from monolith.serving.request_log.answered import AnsweredRequest
    from monolith.serving.request_log.config import RequestLogConfig
    from monolith.serving.request_log.sink import RecordSink, Told

__all__ = ["RequestLog", "records_of"]

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
        self._waiting: BoundedBuffer[_Waiting] = BoundedBuffer(options.queue_bytes)
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


T = TypeVar("T")


class BoundedBuffer(Generic[T]):
    """Queue with one consumer. Any thread may `offer`; it never blocks except for the lock.

    Args:
        most_bytes: Maximum size of queued items and those taken last, together.
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

    def drop(self) -> list[T]:
        """Removes and returns the items that are still queued."""
        with self._changed:
            dropped = list(self._items)
            self._items.clear()
            self._waiting_bytes = 0
            return dropped


_PATIENCE_SECONDS = 60
"""How long a record waits for an unreachable broker."""


class Topic:
    """Sink that sends records; librdkafka buffers those that brokers have not acknowledged. Not thread-safe.

    Args:
        place: Topic and brokers.
        told: Called with the outcome of records, within `append`, `flush` and `close`.
        most_bytes: Maximum size of records that wait for the brokers; further ones are lost.
        settings: Further settings of librdkafka.

    Raises:
        UnimplementedError: the client library is not installed.
        ValueError: librdkafka rejects a setting.
    """

    def __init__(self, place: KafkaPlace, told: Told, *, most_bytes: int, settings: Mapping[str, str]) -> None:
        self._place = place
        self._told = told
        library = confluent_kafka()
        try:
            self._producer: Any = library.Producer(
                {
                    "linger.ms": 50,
                    "message.timeout.ms": _PATIENCE_SECONDS * 1000,
                    "reconnect.backoff.max.ms": 2000,
                    "queue.buffering.max.kbytes": max(1, most_bytes >> 10),
                    "queue.buffering.max.messages": 1_000_000,
                    # The default of Kafka's Java clients, so that actions written by them are in the same partitions.
                    "partitioner": "murmur2_random",
                    **settings,
                    "bootstrap.servers": place.brokers,
                },
                logger=new_library_log(id(self)),
            )
        except library.KafkaException as error:
            raise ValueError(f"request log: kafka: {error.args[0].str()}") from error

    def append(self, request_id: bytes, records: Sequence[bytes]) -> None:
        """Passes the records of a request to librdkafka."""
        for number, record in enumerate(records):
            try:
                self._producer.produce(self._place.topic, record, request_id, on_delivery=self._delivered)
            except BufferError:
                self._producer.poll(0)
                self._told(len(records) - number, self._refusal("more records wait for the brokers than may"))
                break
            except Exception as error:  # noqa: BLE001 - such as a record too large; later ones may succeed
                self._told(1, self._refusal(str(error)))
        self._producer.poll(0)

    def flush(self) -> None:
        """Processes delivery reports."""
        self._producer.poll(0)

    def close(self, seconds: float) -> None:
        """Waits up to `seconds` for the brokers; records not acknowledged by then are lost."""
        left = self._producer.flush(seconds)
        if left:
            self._told(left, UnavailableError(f"{self._name}: the brokers have not taken them in {seconds:g} s"))
        self._told = partial(_nothing)
        self._producer.purge()

    @property
    def _name(self) -> str:
        return f"topic '{self._place.topic}' at {self._place.brokers}"

    def _refusal(self, reason: str) -> ResourceExhaustedError:
        return ResourceExhaustedError(f"{self._name}: {reason}")

    def _delivered(self, error: Any, _: Any) -> None:
        if error is None:
            self._told(1, None)
        else:
            self._told(1, UnavailableError(f"{self._name}: {error.str()} ({error.name()})"))


def _nothing(*_: object) -> None:
    """Ignores delivery reports after `close` has reported all records."""


# It is a ``JoinEvent`` whose sample is an ``Example`` with the features of the request and the answer: the feature
# ``__SERVED__`` has model, signature, version, request and index in it as JSON, and ``__SERVED__/NAME`` the output of
# that name. The joiner copies all of it to its examples.

_ITEM_MASK = (1 << 64) - 1


def records_of(request: AnsweredRequest, *, time_ms: int, item_column: str | None = None) -> list[bytes]:
    """Returns the records of a request, in the order of its examples.

    Args:
        request: The answered request.
        time_ms: Time of the request, Unix milliseconds.
        item_column: Column with the item of an example; if None or not in the request, the index of the example is
            used.

    Raises:
        DataLossError: the encoded samples are invalid.
    """
    samples, items = _encoded(request, item_column) if request.is_encoded else _columns(request, item_column)
    answers = _answers(request)
    return [
        impression_record(request.request_id, item & _ITEM_MASK, time_ms=time_ms, sample=sample + answer)
        for item, sample, answer in zip(items, samples, answers, strict=True)
    ]


def _columns(request: AnsweredRequest, item_column: str | None) -> tuple[list[bytes], list[int]]:
    count = request.num_examples
    features = ExampleFeatures(count)
    for name, column in request.columns.items():
        if isinstance(column, list):
            features.add_texts(name, column)
        else:
            features.add_numbers(name, column, is_ids=request.inputs[name].kind == "ids")
    found = None if item_column is None else request.columns.get(item_column)
    items = list(range(count)) if found is None or isinstance(found, list) else _first_ids(found)
    return features.rows(), items * count if len(items) == 1 else items


def _encoded(request: AnsweredRequest, item_column: str | None) -> tuple[list[bytes], list[int]]:
    ((form, samples),) = request.columns.items()
    examples = requested_examples(form, samples if isinstance(samples, list) else [])
    items = list(range(len(examples)))
    if item_column is not None:
        items = [first_id_of(example, item_column) for example in examples]
    return [example.SerializeToString() for example in examples], items


def _first_ids(column: Tensor | Ragged) -> list[int]:
    if not isinstance(column, Ragged):
        return [int(each) for each in column.reshape(column.shape[0], -1)[:, 0].tolist()]
    values = column.flat_values
    starts, lengths = column.row_splits[:-1], column.lengths()
    if not len(values):
        return [0] * column.num_rows
    firsts = values[starts.clamp(max=len(values) - 1)]
    return [int(each) for each in torch.where(lengths > 0, firsts, torch.zeros_like(firsts)).tolist()]


def _answers(request: AnsweredRequest) -> list[bytes]:
    """Returns the encoded answer of each example; an output that is not per example is repeated in each."""
    count, version = request.num_examples, request.version
    told = json.dumps(
        {
            "request": request.request_id.decode("latin-1"),
            "model": request.model,
            "signature": request.signature,
            "export": int(version.export),
            "dense": int(version.dense),
            "sparse": {str(part): int(number) for part, number in version.sparse.items()},
            "examples": count,
        },
        separators=(",", ":"),
    )
    head = told.removesuffix("}").encode()
    features = ExampleFeatures(count)
    features.add_texts(SERVED, [b'%b,"example":%d}' % (head, number) for number in range(count)])
    for name, values in request.outputs.items():
        by_example = values.ndim > 0 and values.shape[0] == count
        features.add_numbers(f"{SERVED}/{name}", values if by_example else values.reshape(1, -1))
    return features.rows()
