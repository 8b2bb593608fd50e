"""Fetches messages of the partitions that are ours: each once, up to where the partition ends.

They become blocks as they arrive (`Arrival`), or in the same order in every run (`FixedOrder`).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from monolith import _core
from monolith.data.kafka.messages import Chunk
from monolith.data.kafka.position import Partition
from monolith.errors import OutOfRangeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt
    from confluent_kafka import KafkaError, Message

    from monolith.data.kafka.client import KafkaClient
    from monolith.data.kafka.config import KafkaConfig
    from monolith.data.kafka.position import Offsets


_LOG = logging.getLogger(__name__)


def fresh(offsets: npt.NDArray[np.int64], floor: int) -> npt.NDArray[np.bool_]:
    """Returns which messages are new: not below `floor`, and above all earlier ones.

    >>> fresh(np.array([3, 4, 4, 2, 5]), 4).tolist()
    [False, True, False, False, True]
    """
    highest_before = np.maximum.accumulate(np.concatenate([[floor - 1], offsets[:-1]]))
    return offsets > highest_before


class Fetching:
    """Fetched offsets and ends of partitions. Not thread-safe."""

    def __init__(self, client: KafkaClient, config: KafkaConfig, *, stop_ms: int | None, ends: Offsets) -> None:
        self._client = client
        self._config = config
        self._stop_ms = stop_ms
        self.fetched: Offsets = {}
        """Assigned partitions, each with the offset after the last message that was fetched."""
        self.ends = ends
        """Ends of partitions, if known."""
        self.lost = 0
        """Messages that the brokers had deleted before they could be read."""
        self.generation = 0
        """Changes when the partitions that are ours do."""
        self._seen_ends: Offsets = {}
        self._paused: set[Partition] = set()

    def own(self, offsets: Mapping[Partition, int]) -> None:
        """Takes these partitions instead of those before; their first messages are fetched at these offsets."""
        there = self._client.watermarks(list(offsets))
        self.fetched = {each: self._existing(each, offset, there[each]) for each, offset in offsets.items()}
        self.generation += 1
        self._assign()

    def disown(self, partitions: Iterable[Partition]) -> None:
        """Drops partitions: messages that still arrive are left to their new owner."""
        self.generation += 1
        for partition in partitions:
            self.fetched.pop(partition, None)
            self._paused.discard(partition)

    def is_complete(self, partition: Partition) -> bool:
        """Returns whether everything up to the end of a partition was fetched."""
        end = self.ends.get(partition)
        if end is None:
            return False
        # The last offsets before an end may belong to no message: marks of transactions, deleted keys.
        return max(self.fetched.get(partition, 0), self._seen_ends.get(partition, 0)) >= end

    def is_behind(self) -> bool:
        """Queries the brokers for messages that are wanted now and were not fetched yet."""
        unpaused = [each for each in self.fetched if each not in self._paused and not self.is_complete(each)]
        ends = self._client.ends(unpaused)
        return any(max(self.fetched[each], self._seen_ends.get(each, 0)) < ends[each] for each in unpaused)

    def fetch(self, limit: int) -> list[Chunk]:
        """Returns the next messages, at most `limit`; empty if none arrived in time.

        Raises:
            OutOfRangeError: the next messages of a partition do not exist, and `out_of_range` is "raise".
            OpError: any other error after which reading cannot continue.
        """
        self._client.raise_if_stopped()
        self._find_ends_by_time()
        messages = self._client.consumer.consume(min(limit, self._left()), self._config.linger_seconds)
        if not messages:
            return []
        # One call for all messages: what Python does for each of them is what a fast stream costs.
        gathered = _core.gather_messages(messages)
        if gathered is not None:
            self._client.seen()
            return list(self._chunks(messages, gathered))
        with_errors = [(message, message.error()) for message in messages]
        messages = [message for message, error in with_errors if error is None]
        chunks = list(self._chunks(messages, _core.gather_messages(messages))) if messages else []
        for event, error in with_errors:
            if error is not None:
                self._handle(event, error)
        return chunks

    def _left(self) -> int:
        """Returns the maximum number of remaining messages; the library would block waiting for more."""
        if any(partition not in self.ends for partition in self.fetched):
            return 1 << 16
        return max(1, sum(max(0, self.ends[partition] - offset) for partition, offset in self.fetched.items()))

    def pause(self, partitions: set[Partition]) -> None:
        """Fetches no more of these partitions, and again of all others."""
        begin, end = partitions - self._paused, self._paused - partitions
        if begin:
            self._client.consumer.pause([self._client.at(partition) for partition in begin])
        if end:
            self._client.consumer.resume([self._client.at(partition) for partition in end])
        self._paused = set(partitions)

    def _chunks(self, messages: Sequence[Message], gathered: Any) -> Iterator[Chunk]:
        buffer, begins, lengths, offsets, numbers = gathered
        for begin, end in self._runs(messages, numbers):
            partition = Partition(str(messages[begin].topic()), int(numbers[begin]))
            if partition in self.fetched:
                if self._stop_ms is not None:
                    self._end_by_time(partition, messages[begin:end], self._stop_ms)
                part = slice(begin, end)
                chunk = self._fresh_part(Chunk(partition, buffer, begins[part], lengths[part], offsets[part]))
                if len(chunk):
                    yield chunk

    def _runs(self, messages: Sequence[Message], numbers: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        """Yields start and end of runs of messages in the same partition."""
        changes = ((numbers[1:] != numbers[:-1]).nonzero()[0] + 1).tolist()
        if len(self._client.topics) > 1:
            names = map(self._client.message_type.topic, messages)
            others = (place for place, (one, next_) in enumerate(pairwise(names), 1) if one != next_)
            changes = sorted({*changes, *others})
        return pairwise([0, *changes, len(messages)])

    def _fresh_part(self, chunk: Chunk) -> Chunk:
        floor, end = self.fetched[chunk.partition], self.ends.get(chunk.partition)
        offsets = chunk.offsets
        first, last = int(offsets[0]), int(offsets[-1])
        if end is not None and last >= end:
            self._seen_ends[chunk.partition] = end
        # As a rule they are all wanted, and then nothing is to be picked out.
        if first < floor or (end is not None and last >= end) or not (offsets[1:] > offsets[:-1]).all():
            kept = fresh(offsets, floor)
            chunk = chunk[kept if end is None else kept & (offsets < end)]
        if len(chunk):
            self.fetched[chunk.partition] = int(chunk.offsets[-1]) + 1
        return chunk

    def _end_by_time(self, partition: Partition, messages: Sequence[Message], stop_ms: int) -> None:
        """Sets the end of a partition to its first message of the stop time or later."""
        for message in messages:
            if message.timestamp()[1] >= stop_ms:
                end = int(message.offset() or 0)
                self.ends[partition] = min(end, self.ends.get(partition, end))
                return

    def _find_ends_by_time(self) -> None:
        """Sets the ends of partitions once the stop time has passed."""
        if self._stop_ms is None or time.time() * 1000 < self._stop_ms:
            return
        if missing := [partition for partition in self.fetched if partition not in self.ends]:
            self.ends |= self._client.offsets_at(missing, self._stop_ms)

    def _handle(self, event: Message, error: KafkaError) -> None:
        partition = Partition(str(event.topic()), int(event.partition() or 0))
        if self._client.is_code(error, "_PARTITION_EOF"):
            self._client.seen()
            self._seen_ends[partition] = int(event.offset() or 0)
        elif self._client.is_code(error, "_AUTO_OFFSET_RESET"):
            if partition in self.fetched:
                there = self._client.watermarks([partition])[partition]
                self.fetched[partition] = self._existing(partition, self.fetched[partition], there)
                # A partition in this state refuses to seek, so all of them are begun again where they are.
                self._assign()
        elif self._client.is_code(error, "_MAX_POLL_EXCEEDED"):
            _LOG.warning("%s; the group continues without this reader until it polls again", error.str())
        else:
            raise self._client.translate(error, str(partition))

    def _assign(self) -> None:
        self._seen_ends.clear()
        self._paused.clear()
        self._client.consumer.assign([self._client.at(partition, offset) for partition, offset in self.fetched.items()])

    def _existing(self, partition: Partition, offset: int, there: tuple[int, int]) -> int:
        """Returns the offset if it exists on the brokers, else the one chosen by `out_of_range`."""
        low, high = there
        if low <= offset <= high:
            return offset
        text = f"{partition}: offset {offset} is out of range: the brokers hold {low} to {high - 1}"
        if self._config.out_of_range == "raise":
            raise OutOfRangeError(
                f"{text}; messages were deleted before they were read, or the topic was recreated; "
                'set out_of_range="earliest" or "latest" to continue without them'
            )
        chosen = low if self._config.out_of_range == "earliest" else high
        lost = max(0, chosen - offset)
        self.lost += lost
        _LOG.warning("%s; resuming at offset %d, %d messages are lost", text, chosen, lost)
        return chosen


_BYTES_OF_A_PLACE = 64
"""Approximate overhead of a chunk's arrays per message, significant for small messages."""


class Ordering(Protocol):
    """Makes blocks of messages."""

    def add(self, chunks: Sequence[Chunk]) -> None:
        """Adds the messages of a fetch."""

    def take(self) -> Sequence[Chunk]:
        """Returns the next block, or nothing if it is incomplete."""

    def is_over(self) -> bool:
        """Returns whether every partition was read up to its end."""

    @property
    def turn(self) -> Partition | None:
        """Partition of the next block, if the order is fixed."""


class Arrival:
    """Order of arrival: what was fetched together is a block."""

    turn = None

    def __init__(self, fetching: Fetching) -> None:
        self._fetching = fetching
        self._waiting: Sequence[Chunk] = ()

    def add(self, chunks: Sequence[Chunk]) -> None:
        """Adds the messages of a fetch."""
        self._waiting = chunks

    def take(self) -> Sequence[Chunk]:
        """Returns what was fetched last."""
        block, self._waiting = self._waiting, ()
        return block

    def is_over(self) -> bool:
        """Returns whether all assigned partitions are at their end."""
        owned = self._fetching.fetched
        return bool(owned) and all(map(self._fetching.is_complete, owned))


class FixedOrder:
    """Blocks of the same number of messages, one partition after another.

    Which messages make a block depends on the position and on what the partitions hold, never on when they came.
    Partitions that run ahead are paused, so that what waits here stays within its budget.
    """

    def __init__(
        self, fetching: Fetching, partitions: Sequence[Partition], *, block_messages: int, buffer_bytes: int
    ) -> None:
        self._fetching = fetching
        self._block_messages = block_messages
        self._budget = buffer_bytes // len(partitions)
        self._queues = {partition: _Queue() for partition in sorted(partitions)}
        self._turns = deque(self._queues)

    @property
    def turn(self) -> Partition:
        """Partition of the next block."""
        return self._turns[0]

    def start_with(self, partition: Partition) -> None:
        """Makes it this partition's turn."""
        self._turns.rotate(-self._turns.index(partition))

    def add(self, chunks: Sequence[Chunk]) -> None:
        """Adds the messages of a fetch."""
        for chunk in chunks:
            self._queues[chunk.partition].add(chunk)
        self._pause_those_ahead()

    def take(self) -> Sequence[Chunk]:
        """Returns a block of the next partition, round-robin; finished partitions have none."""
        for _ in range(len(self._turns)):
            partition = self._turns[0]
            queue = self._queues[partition]
            is_complete = self._fetching.is_complete(partition)
            if queue.messages >= self._block_messages or (is_complete and queue.messages):
                self._turns.rotate(-1)
                block = queue.take(self._block_messages)
                self._pause_those_ahead()
                return block
            if not is_complete:
                break
            self._turns.rotate(-1)
        return ()

    def is_over(self) -> bool:
        """Returns whether all partitions were read up to their end."""
        is_complete = self._fetching.is_complete
        return all(not queue.messages and is_complete(partition) for partition, queue in self._queues.items())

    def _pause_those_ahead(self) -> None:
        ahead = {
            partition
            for partition, queue in self._queues.items()
            if queue.size_bytes > self._budget and queue.messages >= self._block_messages
        }
        self._fetching.pause(ahead | {partition for partition in self._queues if self._fetching.is_complete(partition)})


class _Queue:
    """Messages of one partition that wait for its turn."""

    def __init__(self) -> None:
        self._chunks: deque[Chunk] = deque()
        self.messages = 0
        self.size_bytes = 0
        """Approximate memory of the chunks in bytes."""

    def add(self, chunk: Chunk) -> None:
        self._chunks.append(chunk.alone())
        self._count(chunk, 1)

    def take(self, count: int) -> list[Chunk]:
        taken: list[Chunk] = []
        while count and self._chunks:
            chunk = self._chunks.popleft()
            if len(chunk) > count:
                self._chunks.appendleft(chunk[count:])
                chunk = chunk[:count]
            taken.append(chunk)
            count -= len(chunk)
            self._count(chunk, -1)
        return taken

    def _count(self, chunk: Chunk, sign: int) -> None:
        self.messages += sign * len(chunk)
        self.size_bytes += sign * (chunk.num_bytes + _BYTES_OF_A_PLACE * len(chunk))
