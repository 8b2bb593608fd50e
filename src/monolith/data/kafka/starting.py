"""Where reading starts: at a position, or at the start of a new reading."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

from monolith.data.kafka.position import KafkaPosition, Partition
from monolith.errors import InvalidArgumentError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.data.kafka.client import KafkaClient
    from monolith.data.kafka.position import Offsets

Start: TypeAlias = str | datetime | Mapping[str, Mapping[int, int]]
"""``"earliest"``, ``"latest"``, ``"committed"`` (where the group's last commit stands), the time of the first message,
or topic -> partition -> offset."""
Stop: TypeAlias = str | datetime
"""``"never"``, ``"end"`` (the end when reading starts), or the time of the first message not to be read."""


def check_start(start: Start) -> None:
    """Refuses what is no start."""
    if isinstance(start, datetime):
        milliseconds(start)
    elif not isinstance(start, Mapping) and start not in {"earliest", "latest", "committed"}:
        raise ValueError(
            f'start must be "earliest", "latest", "committed", a time, or offsets by topic and partition, got {start!r}'
        )


def check_stop(stop: Stop) -> None:
    """Refuses what is no stop."""
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
        given = {
            Partition(topic, int(number)): offset for topic, each in start.items() for number, offset in each.items()
        }
        if missing := [partition for partition in partitions if partition not in given]:
            raise InvalidArgumentError(f"start: no offset for {_list(missing)}")
        return {partition: given[partition] for partition in partitions}
    if start == "committed":
        # Partitions without a committed offset are read from their first message, so that nothing is lost.
        found = {partition: offset for partition, (offset, _) in client.committed(partitions).items()}
        return new_offsets(client, [each for each in partitions if each not in found], "earliest") | found
    return {partition: ends[start == "latest"] for partition, ends in client.watermarks(partitions).items()}


def offsets_behind(
    client: KafkaClient, position: KafkaPosition, partitions: Sequence[Partition], mine: Sequence[Partition]
) -> Offsets:
    """Returns where a worker resumes its partitions from a position.

    Partitions that were added to a topic since are read from their first message.

    Raises:
        InvalidArgumentError: the position lacks a partition that existed.
    """
    check_topics(client, position, partitions)
    missing = [each for each in mine if each not in position.next]
    if unknown := [each for each in missing if each.number < position.counts.get(each.topic, 0)]:
        raise InvalidArgumentError(
            f"position in Kafka topics: it has no offset for {_list(unknown)}; it is that of another worker, or of "
            "another number of workers: merge_positions makes one for all"
        )
    return {each: position.next[each] for each in mine if each in position.next} | new_offsets(
        client, missing, "earliest"
    )


def check_topics(client: KafkaClient, position: KafkaPosition, partitions: Sequence[Partition]) -> None:
    """Refuses a position in other topics.

    Raises:
        InvalidArgumentError: topics that only one side has.
        NotFoundError: a partition that there is no more.
    """
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
