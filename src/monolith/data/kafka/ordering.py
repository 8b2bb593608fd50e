"""Order in which fetched messages become blocks: as they arrive, or the same in every run."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.data.kafka.fetching import Fetching
    from monolith.data.kafka.messages import Chunk
    from monolith.data.kafka.position import Partition


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
        return all(
            not queue.messages and self._fetching.is_complete(partition) for partition, queue in self._queues.items()
        )

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
