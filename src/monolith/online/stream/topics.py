"""Reads numbered examples from the topic of a joiner."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Any

from monolith.data.kafka import KafkaClient, KafkaConfig, Partition
from monolith.errors import UnavailableError
from monolith.online.joiner.examples import NumberedExample
from monolith.online.joiner.topics import NUMBER_HEADER
from monolith.online.stream.files import Fetched

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monolith.data.records import BadRecords
    from monolith.online.joiner.endpoints import KafkaPlace
    from monolith.online.stream.admission import Reached

_log = logging.getLogger(__name__)

_GROUP = "monolith-stream"
_LOOK_SECONDS = 0.5
"""Interval of the queries for the end of a silent topic."""


class TopicExamples:
    """All partitions of a topic. Offsets are stored by the reader; none are committed to the brokers."""

    def __init__(
        self, place: KafkaPlace, reached: Sequence[Reached], bad: BadRecords, settings: Mapping[str, Any]
    ) -> None:
        self.name = f"stream '{place.topic}' at {place.brokers}"
        config = KafkaConfig(group=_GROUP, sample="plaintext", client=dict(settings))
        self._client = KafkaClient(place.brokers, [place.topic], config)
        self._bad = bad
        self._looked = -math.inf
        self._ends: dict[Partition, int] = {}
        partitions = [Partition(place.topic, number) for number in range(len(reached))]
        places = zip(partitions, reached, strict=True)
        self._expected = {partition: position for partition, position in places if position.place is not None}
        """Resumed partition -> its last returned message, until that message is found."""
        try:
            self._next = self._beginnings(partitions)
            self._assign()
        except BaseException:
            self._client.close()
            raise

    def fetch(self, limit: int, seconds: float) -> Sequence[Fetched]:
        """Returns at most `limit` examples; waits at most `seconds` for the first message."""
        examples: list[Fetched] = []
        self._client.raise_if_stopped()
        for message in self._client.consumer.consume(limit, seconds):
            error = message.error()
            if error is None:
                fetched = self._example_of(message)
                if fetched is not None:
                    examples.append(fetched)
            elif self._client.is_code(error, "_AUTO_OFFSET_RESET"):
                self._begin_at_what_is_there()
            elif self._client.is_code(error, "_PARTITION_EOF"):
                self._client.seen()
            else:
                raise self._client.translate(error, self.name)
        if not examples:
            self._client.check_contact()
        return examples

    def behind(self) -> int:
        """Returns the number of unread messages, as last reported by the brokers."""
        end_of = self._client.consumer.get_watermark_offsets
        ends = {each: end_of(self._client.at(each), cached=True)[1] for each in self._next}
        return sum(max(0, end - self._next[partition]) for partition, end in ends.items())

    def is_at_end(self) -> bool:
        """Returns whether the brokers have no more messages."""
        self._look()
        return bool(self._ends) and not any(end > self._next[partition] for partition, end in self._ends.items())

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def _look(self) -> None:
        if time.monotonic() - self._looked >= _LOOK_SECONDS:
            self._looked = time.monotonic()
            try:
                self._ends = self._client.ends(list(self._next))
            except UnavailableError:
                self._ends = {}

    def _example_of(self, message: Any) -> Fetched | None:
        self._client.seen()
        partition = Partition(str(message.topic()), int(message.partition()))
        place = int(message.offset())
        if place < self._next[partition]:
            return None  # librdkafka may return messages before the requested offset
        self._next[partition] = place + 1
        value = message.value()
        if value is None:
            return None
        digits = dict(message.headers() or ()).get(NUMBER_HEADER, b"")
        if not digits.isdigit():
            self._bad.add(
                f"{partition}, offset {place}: a message without number; a stream of examples must be the output"
                " of monolith joiner"
            )
            return None
        expected = self._expected.pop(partition, None)
        if expected is not None and place == expected.place:
            if int(digits) != expected.number:
                self._begin_anew(partition)
            return None
        example = NumberedExample(int(digits), message.timestamp()[1], message.key() or b"", value)
        return Fetched(partition.number, example, place)

    def _begin_anew(self, partition: Partition) -> None:
        """Restarts a partition of a recreated topic; numbers identify the examples already trained."""
        low, _ = self._client.watermarks([partition])[partition]
        _log.warning(
            "%s: offset %d holds another example than before: the topic was recreated; reading restarts from the"
            " beginning, and skips the examples already trained",
            partition,
            self._next[partition] - 1,
        )
        self._next[partition] = low
        self._assign()

    def _beginnings(self, partitions: list[Partition]) -> dict[Partition, int]:
        """Returns the offset at which each partition resumes; numbers identify earlier examples, wherever they are."""
        there = self._client.watermarks(partitions)
        offsets: dict[Partition, int] = {}
        for partition in partitions:
            low, high = there[partition]
            place = self._expected[partition].place if partition in self._expected else None
            offsets[partition] = place if place is not None and low <= place < high else low
            if place is not None and offsets[partition] != place:
                gone = f"{partition}: offset {place}, the resume position, no longer exists"
                resumed = f"the brokers hold {low} to {high - 1}; reading resumes at {low}"
                _log.warning("%s: %s, and skips the examples already trained", gone, resumed)
        return offsets

    def _begin_at_what_is_there(self) -> None:
        """Continues after messages were deleted or the topic was recreated; missing numbers are reported later."""
        there = self._client.watermarks(list(self._next))
        for partition, (low, high) in there.items():
            if not low <= self._next[partition] <= high:
                _log.warning("%s: offset %d no longer exists; resuming at %d", partition, self._next[partition], low)
                self._next[partition] = low
        self._assign()

    def _assign(self) -> None:
        self._client.consumer.assign([self._client.at(partition, offset) for partition, offset in self._next.items()])
