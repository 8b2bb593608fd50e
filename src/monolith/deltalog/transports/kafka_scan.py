"""Determines for writers which records of a partition count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.deltalog.replay import Replay
from monolith.deltalog.transport import Extent
from monolith.deltalog.transports.kafka_tail import KafkaTail

if TYPE_CHECKING:
    from monolith.deltalog.transports.kafka_transport import KafkaTransport


class KafkaScan:
    """Scan of a part from its beginning that decides which records count."""

    def __init__(self, transport: KafkaTransport, part: str) -> None:
        self.tail = KafkaTail(transport, part, None)
        self._replay = Replay(part, place=transport.place)
        self._first: int | None = None
        self._last: dict[int, int] = {}
        """Writer -> number of its last record that counts."""

    @property
    def extent(self) -> Extent | None:
        """What the part has, as of the last `drain`; None: nothing."""
        replay = self._replay
        if self._first is None or replay.next_number is None or replay.generation is None or replay.writer is None:
            return None
        return Extent(self._first, replay.next_number, replay.generation, replay.writer)

    def drain(self) -> None:
        """Reads up to the end of the partition."""
        while (record := self.tail.next()) is not None:
            self._take(record)

    def has(self, writer: int, number: int, *, behind: int) -> bool:
        """Returns whether a record that ends before an offset counts."""
        while self.tail.offset < behind:
            record = self.tail.next()
            if record is not None:
                self._take(record)
        return self._last.get(writer, -1) >= number

    def _take(self, record: bytes) -> None:
        outcome = self._replay.take(record)
        found = outcome.increment
        if outcome.verdict.is_wrong and found is not None:
            # Readers stop at the damage, but a writer continues after it.
            self._replay = Replay(self._replay.part, place=self._replay.place, next_number=found.number)
            outcome = self._replay.take(record)
        if outcome.verdict.counts and found is not None:
            self._first = found.number if self._first is None else self._first
            self._last[found.writer] = found.number
