"""Position of a reading of topics, the next offset of each partition, and where a reading without a position starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

from monolith.data.position import NEXT_ACTION
from monolith.errors import InvalidArgumentError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from monolith.data.kafka.client import KafkaClient

_VERSION = 1


class Partition(NamedTuple):
    """One partition of a topic; sorts by topic, then number."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"topic '{self.topic}', partition {self.number}"


Offsets = dict[Partition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaPosition:
    """Content of a position; as bytes it is JSON with sorted keys."""

    next: Offsets
    """The offset after the last message that was returned; the start offset of a partition without one."""
    ends: Offsets = field(default_factory=dict)
    """Ends of the partitions of an unfinished pass: a resumed reading ends where the pass would have."""
    inside: Offsets = field(default_factory=dict)
    """Number of records of the message at `next` that were returned already; 0 if absent."""
    turn: Partition | None = None
    """Partition of the next block, in fixed order."""
    counts: dict[str, int] = field(default_factory=dict)
    """Number of partitions of each topic when reading began: those that were added later are read from their start."""

    def to_bytes(self) -> bytes:
        """Serializes the position; equal positions are equal bytes."""
        values: dict[str, Any] = {"kafka": _VERSION, "next": _nested(self.next), "partitions": self.counts}
        if self.ends:
            values["ends"] = _nested(self.ends)
        if self.inside:
            values["inside"] = _nested(self.inside)
        if self.turn is not None:
            values["turn"] = list(self.turn)
        return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, position: bytes) -> Self:
        """Parses the result of :meth:`to_bytes`.

        Raises:
            InvalidArgumentError: it is not a position in Kafka topics.
        """
        try:
            values = json.loads(position)
            if values["kafka"] != _VERSION:
                raise InvalidArgumentError(
                    f"position in Kafka topics: format {values['kafka']!r}, this release reads {_VERSION}"
                )
            turn = values.get("turn")
            return cls(
                next=_flat(values["next"]),
                ends=_flat(values.get("ends", {})),
                inside=_flat(values.get("inside", {})),
                turn=None if turn is None else Partition(str(turn[0]), int(turn[1])),
                counts={str(topic): int(count) for topic, count in values["partitions"].items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            if isinstance(error, InvalidArgumentError):
                raise
            raise InvalidArgumentError(
                f"not a position in Kafka topics: {bytes(position)[:80]!r}; {NEXT_ACTION}"
            ) from error


def merge_positions(positions: Iterable[bytes]) -> bytes:
    """Returns the position of all workers together, from those that each of them saved at the same checkpoint.

    For a partition that several of them read, one after another, the furthest offset counts. Pass the result to every
    worker of a job that resumes with another number of workers, or whose group reassigns partitions.

    >>> merge_positions([KafkaPosition(next={Partition("clicks", 0): 7}).to_bytes(),
    ...                  KafkaPosition(next={Partition("clicks", 1): 3}).to_bytes()])
    b'{"kafka":1,"next":{"clicks":{"0":7,"1":3}},"partitions":{}}'
    """
    merged: Offsets = {}
    inside: Offsets = {}
    ends: Offsets = {}
    counts: dict[str, int] = {}
    for position in positions:
        part = KafkaPosition.from_bytes(position)
        for partition, offset in part.next.items():
            place = max((offset, part.inside.get(partition, 0)), (merged.get(partition, 0), inside.get(partition, 0)))
            merged[partition], inside[partition] = place
        # A worker that is done has dropped its ends: its partitions begin a new pass, the others finish theirs.
        ends |= part.ends
        for topic, count in part.counts.items():
            counts[topic] = max(count, counts.get(topic, 0))
    inside = {partition: count for partition, count in inside.items() if count}
    return KafkaPosition(next=merged, ends=ends, inside=inside, counts=counts).to_bytes()


def _nested(offsets: Mapping[Partition, int]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for partition, offset in offsets.items():
        nested.setdefault(partition.topic, {})[str(partition.number)] = offset
    return nested


def _by_partition(nested: Any) -> dict[Partition, Any]:
    return {
        Partition(topic, int(number)): offset for topic, numbers in nested.items() for number, offset in numbers.items()
    }


def _flat(nested: Any) -> Offsets:
    offsets = _by_partition(nested)
    for partition, offset in offsets.items():
        if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0 or partition.number < 0:
            raise InvalidArgumentError(f"position in Kafka topics: {partition}: no offset: {offset!r}")
    return offsets


Start: TypeAlias = str | datetime | Mapping[str, Mapping[int, int]]
"""``"earliest"``, ``"latest"``, ``"committed"`` (where the group's last commit stands), the time of the first message,
or topic -> partition -> offset."""
Stop: TypeAlias = str | datetime
"""``"never"``, ``"end"`` (the end when reading starts), or the time of the first message not to be read."""


def check_start(start: Start) -> None:
    """Refuses an invalid start."""
    if isinstance(start, datetime):
        milliseconds(start)
    elif not isinstance(start, Mapping) and start not in {"earliest", "latest", "committed"}:
        raise ValueError(
            f'start must be "earliest", "latest", "committed", a time, or offsets by topic and partition, got {start!r}'
        )


def check_stop(stop: Stop) -> None:
    """Refuses an invalid stop."""
    if isinstance(stop, datetime):
        milliseconds(stop)
    elif stop not in {"never", "end"}:
        raise ValueError(f'stop must be "never", "end" or a time, got {stop!r}')


def milliseconds(moment: datetime) -> int:
    """Returns milliseconds since the epoch, as in messages."""
    if moment.tzinfo is None:
        raise ValueError(f"a time needs its zone, got {moment!r}; add tzinfo, such as datetime.UTC")
    return round(moment.timestamp() * 1000)


def new_offsets(client: KafkaClient, partitions: Sequence[Partition], start: Start) -> Offsets:
    """Returns the start offsets of a reading without a position."""
    if not partitions:
        return {}
    if isinstance(start, datetime):
        return client.offsets_at(partitions, milliseconds(start))
    if isinstance(start, Mapping):
        start_offsets = _by_partition(start)
        if missing := [partition for partition in partitions if partition not in start_offsets]:
            raise InvalidArgumentError(f"start: no offset for {_list(missing)}")
        return {partition: start_offsets[partition] for partition in partitions}
    if start == "committed":
        # Partitions without a committed offset are read from their first message, so that nothing is lost.
        committed = {partition: offset for partition, (offset, _) in client.committed(partitions).items()}
        missing = [partition for partition in partitions if partition not in committed]
        return new_offsets(client, missing, "earliest") | committed
    return {partition: ends[start == "latest"] for partition, ends in client.watermarks(partitions).items()}


def offsets_behind(
    client: KafkaClient, position: KafkaPosition, partitions: Sequence[Partition], mine: Sequence[Partition]
) -> Offsets:
    """Returns where a worker resumes its partitions; those added to a topic since are read from their first message."""
    check_topics(client, position, partitions)
    missing = [partition for partition in mine if partition not in position.next]
    if unknown := [partition for partition in missing if partition.number < position.counts.get(partition.topic, 0)]:
        raise InvalidArgumentError(
            f"position in Kafka topics: it has no offset for {_list(unknown)}; it is that of another worker, or of "
            "another number of workers: merge_positions makes one for all"
        )
    known = {partition: position.next[partition] for partition in mine if partition in position.next}
    return known | new_offsets(client, missing, "earliest")


def check_topics(client: KafkaClient, position: KafkaPosition, partitions: Sequence[Partition]) -> None:
    """Refuses a position in other topics, or in partitions that there are no more."""
    theirs = set(position.counts) | {partition.topic for partition in position.next}
    if theirs != set(client.topics):
        raise InvalidArgumentError(
            f"position in Kafka topics: it is of {', '.join(sorted(theirs)) or 'none'}, "
            f"the dataset reads {', '.join(sorted(client.topics))}"
        )
    if gone := sorted(position.next.keys() - set(partitions)):
        raise NotFoundError(f"position in Kafka topics: {_list(gone)}: there is no such partition at {client.brokers}")


def _list(partitions: Sequence[Partition]) -> str:
    shown = "; ".join(map(str, partitions[:4]))
    return f"{shown} and {len(partitions) - 4} more" if len(partitions) > 4 else shown
