"""Log of librdkafka, without the same line twenty times a second while a broker is unreachable."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from monolith.background import Backoff
from monolith.data.kafka.position import Partition
from monolith.errors import (
    CancelledError,
    NotFoundError,
    OpError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
    UnknownError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from confluent_kafka import Consumer, KafkaError, Message

    from monolith.data.kafka.config import KafkaConfig
    from monolith.data.kafka.position import Offsets

_REPEAT_SECONDS = 10.0


class SeldomRepeated(logging.Filter):
    """Lets one line of each kind through every ten seconds; the first word of a line is its kind."""

    def __init__(self) -> None:
        super().__init__()
        self._last_logged: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether to log the line."""
        kind, now = record.getMessage().split(" ", 1)[0], time.monotonic()
        if now - self._last_logged.get(kind, -_REPEAT_SECONDS) < _REPEAT_SECONDS:
            return False
        self._last_logged[kind] = now
        return True


def new_library_log(number: int) -> logging.Logger:
    """Returns the logger of one consumer."""
    logger = logging.Logger(f"{__name__.rpartition('.')[0]}.librdkafka-{number}")  # noqa: LOG001 - one for each, not kept
    logger.parent = logging.getLogger(__name__.rpartition(".")[0])
    logger.addFilter(SeldomRepeated())
    return logger


T = TypeVar("T")

_CALL_SECONDS = 1.0
"""One request waits this long: a stop is noticed between requests."""
_LONGEST_PAUSE_SECONDS = 2.0


def confluent_kafka() -> Any:
    """Imports the client library, which may not be installed."""
    try:
        import confluent_kafka as library  # noqa: PLC0415 - an optional dependency, needed for Kafka only
    except ImportError as error:
        raise UnimplementedError(
            "Kafka needs the confluent-kafka package, which is not installed; run: pip install 'monolith-torch[kafka]'"
        ) from error
    return library


class KafkaClient:
    """One consumer. Retries its calls until they succeed or `patience` runs out; `stop` aborts them."""

    def __init__(self, brokers: str, topics: Sequence[str], config: KafkaConfig) -> None:
        self._library = confluent_kafka()
        self.brokers = brokers
        self.topics = tuple(topics)
        self.mark = ""
        """Metadata of the commits of this run."""
        self._patience = config.patience_seconds
        self._stopped = threading.Event()
        self._last_error = self._cause = ""
        self._fatal: OpError | None = None
        self._closed_after: list[KafkaClient] = []
        self._contact = self._probed = time.monotonic()
        settings: dict[str, Any] = {
            "socket.timeout.ms": 10_000,
            "reconnect.backoff.max.ms": int(_LONGEST_PAUSE_SECONDS * 1000),
            # Retry interval of a full queue; the library's default of a second would turn back-pressure into a stall.
            "fetch.queue.backoff.ms": 50,
            "queued.max.messages.kbytes": max(1, config.buffer_bytes >> 11),
            **config.client,
            "bootstrap.servers": brokers,
            "group.id": config.group,
            # Offsets are ours: in the position of the reading, not where the brokers think we are.
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "partition.assignment.strategy": "range,roundrobin",
            "error_cb": self._note,
        }
        self.consumer: Consumer = self._library.Consumer(settings, logger=new_library_log(id(self)))

    @property
    def message_type(self) -> type[Message]:
        """Returns the message class, to call its methods on many messages at a time."""
        kind: type[Message] = self._library.Message
        return kind

    def stop(self) -> None:
        """Lets calls that wait in another thread return with a CancelledError."""
        self._stopped.set()

    def close(self) -> None:
        """Leaves the group and closes the connections."""
        self.stop()
        self.consumer.close()
        for follower in self._closed_after:
            follower.close()

    def close_after(self, other: KafkaClient) -> None:
        """Closes this client when the other one is closed, which may still use it while it leaves its group."""
        other._closed_after.append(self)

    def raise_if_stopped(self) -> None:
        """Raises the error after which the client cannot continue."""
        if self._stopped.is_set():
            raise CancelledError(f"reading from Kafka at {self.brokers}: the reading is closed")
        if self._fatal is not None:
            raise self._fatal

    def seen(self) -> None:
        """Records contact with a broker."""
        self._contact = time.monotonic()
        self._cause = ""

    def check_contact(self) -> None:
        """Checks about once a second whether the brokers are reachable. Call it while no messages arrive.

        Raises:
            UnavailableError: they have not answered for longer than `patience`.
        """
        if time.monotonic() - max(self._contact, self._probed) >= min(_CALL_SECONDS, self._patience / 4):
            self.answers()

    def answers(self) -> bool:
        """Returns whether the brokers answer now.

        Raises:
            UnavailableError: they have not answered for longer than `patience`.
        """
        try:
            self.consumer.list_topics(self.topics[0], timeout=_CALL_SECONDS)
        except self._library.KafkaException as failure:
            self._last_error = _text(failure.args[0])
            self._probed = time.monotonic()
            if self._probed - self._contact > self._patience:
                raise self._unavailable("no broker answers") from failure
            return False
        self.seen()
        return True

    def call(self, what: str, request: Callable[[float], T]) -> T:
        """Returns the response to a request, which receives its timeout; retries while brokers are unreachable.

        Raises:
            UnavailableError: there is no response within `patience`.
        """
        deadline = time.monotonic() + self._patience
        backoff = Backoff(0.05, _LONGEST_PAUSE_SECONDS)
        while True:
            try:
                answer = request(min(_CALL_SECONDS, self._patience))
            except self._library.KafkaException as failure:
                error: KafkaError = failure.args[0]
                self._last_error = _text(error)
                if not self._may_pass(error):
                    raise self.translate(error, what) from failure
                if time.monotonic() + (pause := backoff.next()) > deadline:
                    raise self._unavailable(what) from failure
                self._stopped.wait(pause)
                self.raise_if_stopped()
            else:
                self.seen()
                return answer

    def partitions(self) -> list[Partition]:
        """Returns every partition of the topics, sorted.

        Raises:
            NotFoundError: there is no such topic.
        """
        partitions: list[Partition] = []
        for topic in self.topics:
            about = f"topic '{topic}' at {self.brokers}"
            metadata = self.call(about, lambda limit, topic=topic: self._topic_metadata(topic, limit))  # type: ignore[misc]
            partitions += [Partition(topic, number) for number in metadata.partitions]
        return sorted(partitions)

    def watermarks(self, partitions: Sequence[Partition]) -> dict[Partition, tuple[int, int]]:
        """Returns the first available offset and the one after the last; two requests for all partitions.

        One partition at a time would queue after the fetches in flight, half a second each.
        """
        low = self._list_offsets(partitions, self._library.OFFSET_BEGINNING)
        high = self.ends(partitions)
        return {partition: (low[partition], high[partition]) for partition in partitions}

    def ends(self, partitions: Sequence[Partition]) -> Offsets:
        """Returns the offset after the last message of each partition."""
        return self._list_offsets(partitions, self._library.OFFSET_END)

    def offsets_at(self, partitions: Sequence[Partition], milliseconds: int) -> Offsets:
        """Returns the first offset of a message at this time or later; the end if there is none."""
        offsets = self._list_offsets(partitions, milliseconds)
        ends = self.ends(partitions)
        return {each: ends[each] if offsets[each] < 0 else offsets[each] for each in partitions}

    def _list_offsets(self, partitions: Sequence[Partition], moment: int) -> Offsets:
        """Returns the offsets of a time in milliseconds, or of the ends, which are numbers below 0."""
        if not partitions:
            return {}
        queries = [self.at(partition, moment) for partition in partitions]
        what = f"the offsets of {', '.join(sorted({partition.topic for partition in partitions}))}"
        answers = self.call(what, lambda limit: self.consumer.offsets_for_times(queries, timeout=limit))
        for answer in answers:
            if answer.error is not None:
                raise self.translate(answer.error, str(Partition(answer.topic, answer.partition)))
        return {Partition(answer.topic, answer.partition): answer.offset for answer in answers}

    def committed(self, partitions: Sequence[Partition]) -> dict[Partition, tuple[int, str]]:
        """Returns the committed offsets of the group, with the marks of the committing runs."""
        if not partitions:
            return {}
        queries = [self.at(partition) for partition in partitions]
        what = "the committed offsets of the group"
        answers = self.call(what, lambda limit: self.consumer.committed(queries, timeout=limit))
        return {
            Partition(answer.topic, answer.partition): (answer.offset, answer.metadata or "")
            for answer in answers
            if answer.offset >= 0
        }

    def commit(self, offsets: Offsets) -> None:
        """Commits the offsets of the group to the brokers."""
        if offsets:
            places = [self.at(partition, offset) for partition, offset in offsets.items()]
            self.call("commit of offsets", lambda _: self.consumer.commit(offsets=places, asynchronous=False))

    def at(self, partition: Partition, offset: int | None = None) -> Any:
        """Returns a position as the library's object; with an offset, it has the mark of this run."""
        if offset is None:
            return self._library.TopicPartition(partition.topic, partition.number)
        return self._library.TopicPartition(partition.topic, partition.number, offset, self.mark)

    def is_code(self, error: KafkaError, *names: str) -> bool:
        """Returns whether an error has one of these names of librdkafka."""
        return error.code() in {getattr(self._library.KafkaError, name) for name in names}

    def translate(self, error: KafkaError, what: str) -> OpError:
        """Returns the error as one of our classes; `what` names the request."""
        text = f"{what}: {_text(error)}"
        if self.is_code(error, "UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "TOPIC_EXCEPTION"):
            return NotFoundError(f"{what}: there is no such topic or partition{self._known_topics()}")
        if self.is_code(error, *(f"{what}_AUTHORIZATION_FAILED" for what in ("TOPIC", "GROUP", "CLUSTER"))):
            return PermissionDeniedError(text)
        if self.is_code(error, "_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED"):
            return UnauthenticatedError(text)
        return UnavailableError(text) if self._may_pass(error) else UnknownError(text)

    def _topic_metadata(self, topic: str, limit: float) -> Any:
        metadata = self.consumer.list_topics(topic, timeout=limit).topics[topic]
        if metadata.error is not None:
            raise self._library.KafkaException(metadata.error)
        return metadata

    def _known_topics(self) -> str:
        try:
            known = sorted(self.consumer.list_topics(timeout=_CALL_SECONDS).topics)
        except self._library.KafkaException:
            return ""
        shown = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
        return f"; the brokers have {shown or 'none'}"

    def _unavailable(self, what: str) -> UnavailableError:
        # Lets the library report its connection errors, which are more precise than "timed out".
        self.consumer.poll(0)
        return UnavailableError(
            f"Kafka at {self.brokers}: {what}: no answer for {self._patience:g} seconds; "
            f"the last error: {self._cause or self._last_error}"
        )

    def _may_pass(self, error: KafkaError) -> bool:
        """Returns whether the same request may succeed later."""
        return not error.fatal() and (
            error.retriable()
            or self.is_code(
                error,
                *("_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_WAIT_COORD", "_TIMED_OUT_QUEUE"),
                *("LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION", "REQUEST_TIMED_OUT", "BROKER_NOT_AVAILABLE"),
                *("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
                *("REBALANCE_IN_PROGRESS", "NETWORK_EXCEPTION"),
            )
        )

    def _note(self, error: KafkaError) -> None:
        """Records a connection error, which librdkafka keeps retrying."""
        # The reason of the last broker is more precise than "all brokers are down".
        if not self.is_code(error, "_ALL_BROKERS_DOWN"):
            self._cause = _text(error)
        if error.fatal() or self.is_code(error, "_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED"):
            self._fatal = self.translate(error, f"Kafka at {self.brokers}")


def _text(error: KafkaError) -> str:
    return f"{error.str()} ({error.name()})"
