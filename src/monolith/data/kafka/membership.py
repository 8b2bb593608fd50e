"""Partitions that the brokers hand out among the readers of a group, and take away again."""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING

from monolith.data.kafka.position import Partition
from monolith.data.kafka.starting import new_offsets
from monolith.errors import OpError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from confluent_kafka import Consumer, TopicPartition

    from monolith.data.kafka.client import Client
    from monolith.data.kafka.fetching import Fetching
    from monolith.data.kafka.position import Offsets
    from monolith.data.kafka.starting import Start

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
        self, client: Client, handover: Client, fetching: Fetching, *, following: Offsets, start: Start
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
        partitions = sorted(Partition(each.topic, each.partition) for each in granted)
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
        partitions = [Partition(each.topic, each.partition) for each in taken]
        self._fetching.disown(partitions)
        try:
            if self._handover.answers():
                self._handover.commit({each: self._following[each] for each in partitions if each in self._following})
                return
            reason = "no broker answers"
        except OpError as error:
            reason = str(error)
        _LOG.warning("could not commit offsets to the group, messages may be read twice: %s", reason)

    def _lost(self, _: Consumer, taken: list[TopicPartition]) -> None:
        partitions = [Partition(each.topic, each.partition) for each in taken]
        _LOG.warning("partitions were reassigned before this reader could commit its offsets: %s", partitions)
        self._fetching.disown(partitions)
