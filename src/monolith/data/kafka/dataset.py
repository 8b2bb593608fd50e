"""Topics as a dataset."""

from __future__ import annotations

import hashlib
import logging
from copy import copy
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from monolith.data.dataset import Dataset
from monolith.data.kafka.client import KafkaClient
from monolith.data.kafka.config import KafkaConfig
from monolith.data.kafka.fetching import Arrival, Fetching, FixedOrder
from monolith.data.kafka.messages import Unwrapping
from monolith.data.kafka.position import (
    KafkaPosition,
    Partition,
    Start,
    Stop,
    check_start,
    check_stop,
    check_topics,
    milliseconds,
    new_offsets,
    offsets_behind,
)
from monolith.data.kafka.reading import KafkaReading, RecordGatherer, Starting
from monolith.data.pipeline.elements import check_share
from monolith.data.pipeline.stage import whole_number
from monolith.data.records.bad_records import BadRecords
from monolith.data.records.framing import Framing, SampleFormat
from monolith.data.records.records import Records
from monolith.errors import InvalidArgumentError, OpError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from confluent_kafka import Consumer, TopicPartition

    from monolith.data.kafka.fetching import Ordering
    from monolith.data.kafka.position import Offsets


class KafkaDataset(Dataset[Records]):
    """The messages of some topics, as blocks of records. Offsets are stored only in the position.

    A position is after the last message that was returned, so that a reading from it loses and repeats nothing. Nothing
    is committed to the brokers, except by `KafkaReading.commit`, and when a group reassigns a partition from one reader
    to another.

    >>> dataset = KafkaDataset("clicks", "localhost:9092", stop="end")
    >>> with dataset.read() as reading:  # doctest: +SKIP
    ...     for records in reading:
    ...         batch = parser.parse(records)
    ...         saved = reading.position

    Args:
        topics: One or several, all of one format.
        brokers: ``host:port``, several separated by commas.
        start: Where a reading without a position begins.
        stop: Where it ends. ``"end"``: at the end of each partition when the reading starts; a reading that resumes
            from a position in the middle of such a pass ends where that pass would have, one that resumes from its end
            starts a new pass. With a time, each partition ends before its first message of that time or later, or at
            its end once that time has passed.
        config: Other settings.
        bad: Counts messages that hold no records of their framing, and limits how many may be skipped.
    """

    def __init__(
        self,
        topics: str | Sequence[str],
        brokers: str,
        *,
        start: Start = "earliest",
        stop: Stop = "never",
        config: KafkaConfig | None = None,
        bad: BadRecords | None = None,
    ) -> None:
        self.topics = tuple(sorted({topics} if isinstance(topics, str) else set(topics)))
        if not self.topics or not all(self.topics):
            raise ValueError(f"topics must be names of topics, got {topics!r}")
        if not brokers:
            raise ValueError("brokers must be host:port, several separated by commas, got nothing")
        check_start(start)
        check_stop(stop)
        self.brokers = brokers
        self.start = start
        self.stop = stop
        self.config = KafkaConfig() if config is None else config
        self.bad = BadRecords() if bad is None else bad
        self._rows: int | None = None
        self._drop_remainder = False
        if self.config.assignment == "group" and stop == "end":
            raise ValueError(
                'stop "end" needs assignment "worker": a group member cannot determine which end offsets are its own'
            )

    @property
    def is_replayable(self) -> bool:
        """Messages in order of arrival come in another order when they are read again."""
        return self.config.order == "fixed"

    def share(self, index: int, count: int) -> Dataset[Records]:
        """Returns every `count`-th partition of this worker; a group assigns partitions by itself."""
        check_share(index, count)
        if self.config.assignment == "group":
            return self
        other = copy(self)
        workers = self.config.num_workers
        other.config = replace(self.config, worker=self.config.worker + workers * index, num_workers=workers * count)
        return other

    @property
    def is_share(self) -> bool:
        """Whether it is limited to the partitions of one worker, or assigned by a group."""
        return self.config.assignment == "group" or self.config.num_workers > 1

    def __repr__(self) -> str:
        return f"KafkaDataset({', '.join(map(repr, self.topics))})"

    def batch(self, size: int, *, drop_remainder: bool = False) -> Dataset[Any]:
        """Makes blocks of exactly `size` records; the last one may be smaller, or is dropped.

        In order of arrival blocks are made here, and a position may be inside a message: reading earlier messages again
        would give another order.
        """
        if self.is_replayable:
            return super().batch(size, drop_remainder=drop_remainder)
        if self.config.assignment == "group" and self.config.framing is not None:
            raise InvalidArgumentError(
                "batch: a group cannot commit part of a message, and with a framing a message may hold many records; "
                'use assignment "worker"'
            )
        other = copy(self)
        other._rows = whole_number("batch: size", size, at_least=1)  # noqa: SLF001 - a copy of this one
        other._drop_remainder = drop_remainder or self._drop_remainder  # noqa: SLF001 - a copy of this one
        return other

    def read(self, position: bytes | None = None) -> KafkaReading:
        """Connects, and starts to read at `start`, or at a position.

        Raises:
            NotFoundError: there is no such topic.
            UnavailableError: no broker answers.
            OutOfRangeError: the messages after the position were deleted.
            InvalidArgumentError: the position is of other topics, or of another worker.
        """
        behind = None if position is None else KafkaPosition.from_bytes(position)
        client = KafkaClient(self.brokers, self.topics, self.config)
        try:
            partitions = client.partitions()
            if self.config.assignment == "group":
                return self._read_in_group(client, partitions, position)
            return self._read_own_share(client, partitions, behind)
        except BaseException:
            client.close()
            raise

    def _read_own_share(
        self, client: KafkaClient, partitions: Sequence[Partition], behind: KafkaPosition | None
    ) -> KafkaReading:
        worker, num_workers = self.config.worker, self.config.num_workers
        mine = partitions[worker::num_workers]
        if not mine:
            raise InvalidArgumentError(
                f"worker {worker} of {num_workers} has nothing to read: {', '.join(self.topics)} "
                f"at {self.brokers} have {len(partitions)} partitions; start fewer workers"
            )
        if behind is None:
            offsets = new_offsets(client, mine, self.start)
        else:
            offsets = offsets_behind(client, behind, partitions, mine)
        fetching = self._fetching(client, self._ends(client, mine, behind))
        fetching.own(offsets)
        ordering: Ordering = Arrival(fetching)
        if self.config.order == "fixed":
            ordering = FixedOrder(
                fetching, mine, block_messages=self.config.block_messages, buffer_bytes=self.config.buffer_bytes // 2
            )
            if behind is not None and behind.turn is not None and behind.turn in mine:
                ordering.start_with(behind.turn)
        following = dict(fetching.fetched)
        inside: Offsets = {}
        if behind is not None:
            # Not where the brokers made it begin elsewhere.
            inside = {
                partition: n
                for partition, n in behind.inside.items()
                if behind.next.get(partition) == following.get(partition)
            }
        return self._reading(client, fetching, ordering, Starting(following, inside, self._counts(partitions)))

    def _read_in_group(
        self, client: KafkaClient, partitions: Sequence[Partition], position: bytes | None
    ) -> KafkaReading:
        following: Offsets = {}
        if position is not None:
            behind = KafkaPosition.from_bytes(position)
            check_topics(client, behind, partitions)
            following = dict(behind.next)
        fetching = self._fetching(client, {})
        handover = KafkaClient(self.brokers, self.topics, replace(self.config, group=f"{self.config.group}-handover"))
        handover.close_after(client)
        handover.mark = run_mark(position)
        Membership(client, handover, fetching, following=following, start=self.start).join()
        return self._reading(client, fetching, Arrival(fetching), Starting(following, {}, self._counts(partitions)))

    def _fetching(self, client: KafkaClient, ends: Offsets) -> Fetching:
        stop_ms = milliseconds(self.stop) if isinstance(self.stop, datetime) else None
        return Fetching(client, self.config, stop_ms=stop_ms, ends=ends)

    def _ends(self, client: KafkaClient, mine: Sequence[Partition], behind: KafkaPosition | None) -> Offsets:
        if self.stop == "never":
            return {}
        ends = {} if behind is None else behind.ends
        known = {partition: ends[partition] for partition in mine if partition in ends}
        if self.stop == "end":
            unknown = [partition for partition in mine if partition not in known]
            known |= {partition: end for partition, (_, end) in client.watermarks(unknown).items()}
        return known

    def _reading(self, client: KafkaClient, fetching: Fetching, ordering: Ordering, start: Starting) -> KafkaReading:
        unwrapping = Unwrapping(
            framing=None if self.config.framing is None else Framing.of(self.config.framing),
            sample=SampleFormat.of(self.config.sample),
            max_record_bytes=self.config.max_record_bytes,
            bad=self.bad,
        )
        gathering = None if self._rows is None else RecordGatherer(self._rows, drop_remainder=self._drop_remainder)
        return KafkaReading(
            client, fetching, ordering, unwrapping=unwrapping, config=self.config, start=start, gathering=gathering
        )

    def _counts(self, partitions: Sequence[Partition]) -> dict[str, int]:
        return {topic: sum(partition.topic == topic for partition in partitions) for topic in self.topics}


_LOG = logging.getLogger(__name__)


def run_mark(position: bytes | None) -> str:
    """Returns the mark of commits of readers with the same start; older ones may be ahead of a checkpoint."""
    return "" if position is None else hashlib.sha256(position).hexdigest()[:16]


class Membership:
    """Joins the group, and determines at each rebalance where its partitions start.

    Revoked partitions are passed on by offsets of a second group, ``<group>-handover``, which has no members: brokers
    may refuse commits of a group while its partitions move. A partition resumes where this reader was, or where its
    previous reader stopped, if that is further and was in the same run. Offsets of earlier runs count only for
    partitions that the position does not have: after a restart from a checkpoint they may be ahead of it.
    """

    def __init__(
        self, client: KafkaClient, handover: KafkaClient, fetching: Fetching, *, following: Offsets, start: Start
    ) -> None:
        self._client = client
        self._handover = handover
        self._fetching = fetching
        self._following = following
        self._start = start

    def join(self) -> None:
        """Subscribes to partitions; they are assigned while messages are fetched."""
        self._client.consumer.subscribe(
            list(self._client.topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )

    def _assigned(self, _: Consumer, granted: list[TopicPartition]) -> None:
        partitions = sorted(Partition(entry.topic, entry.partition) for entry in granted)
        _LOG.info("partitions of this reader now: %s", "; ".join(map(str, partitions)) or "none")
        offsets = self._begun(partitions)
        missing = [partition for partition in partitions if partition not in offsets]
        offsets |= new_offsets(self._client, missing, self._start)
        self._following.update(offsets)
        self._fetching.own(offsets)

    def _begun(self, partitions: Sequence[Partition]) -> Offsets:
        """Returns where partitions resume that another reader has started."""
        left = self._handover.committed(partitions)
        offsets: Offsets = {}
        for partition in partitions:
            own = self._following.get(partition)
            other, mark = left.get(partition, (0, ""))
            if own is None and partition in left:
                offsets[partition] = other
            elif own is not None:
                offsets[partition] = max(own, other) if mark == self._handover.mark else own
        return offsets

    def _revoked(self, _: Consumer, taken: list[TopicPartition]) -> None:
        partitions = [Partition(entry.topic, entry.partition) for entry in taken]
        self._fetching.disown(partitions)
        try:
            if self._handover.answers():
                following = self._following
                self._handover.commit({each: following[each] for each in partitions if each in following})
                return
            reason = "no broker answers"
        except OpError as error:
            reason = str(error)
        _LOG.warning("could not commit offsets to the group, messages may be read twice: %s", reason)

    def _lost(self, _: Consumer, taken: list[TopicPartition]) -> None:
        partitions = [Partition(entry.topic, entry.partition) for entry in taken]
        _LOG.warning("partitions were reassigned before this reader could commit its offsets: %s", partitions)
        self._fetching.disown(partitions)
