"""How topics are read: assignment of partitions, order, and handling of missing messages."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from monolith.config import Config, config, require_at_least, require_positive
from monolith.data.records.framing import Framing, SampleFormat
from monolith.data.records.reader import MAX_RECORD_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

_CHOICES = {
    "assignment": ("worker", "group"),
    "order": ("arrival", "fixed"),
    "out_of_range": ("raise", "earliest", "latest"),
}

OWN_SETTINGS = frozenset(
    {
        "bootstrap.servers",
        "group.id",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "auto.offset.reset",
        "enable.partition.eof",
        "partition.assignment.strategy",
    }
)
"""Settings of librdkafka that exact positions rest on."""


@config
class KafkaConfig(Config):
    """Everything about reading topics that has a default."""

    group: str = "monolith"
    """The consumer group, which shares the partitions under ``assignment="group"``, and whose offsets a commit sets."""
    assignment: str = "worker"
    """``"worker"``: worker i of n takes every n-th partition, the same ones after a restart. ``"group"``: the brokers
    assign partitions to the connected readers, and rebalance."""
    worker: int = 0
    """Index of this worker, for ``assignment="worker"``."""
    num_workers: int = 1
    order: str = "arrival"
    """``"arrival"``: as messages arrive. ``"fixed"``: a block of each partition, round-robin, the same in every run;
    waits for a partition without messages."""
    block_messages: int = 1024
    """Messages in a block: at most in order of arrival, exactly in fixed order, but for the end of a partition."""
    framing: str | None = None
    """Framing of the records inside a message; None: the message is the record. ByteDance Monolith's producers wrote
    ``"plain"``."""
    sample: str = "example"
    """Format of the records: the first message is checked for it; ``"plaintext"`` accepts any bytes."""
    max_record_bytes: int = MAX_RECORD_BYTES
    """Longer records are bad."""
    out_of_range: str = "raise"
    """What to do when the next message was deleted, or does not exist yet: ``"raise"``, or continue at the
    ``"earliest"`` or ``"latest"`` one and report how many were lost."""
    patience_seconds: float = 60.0
    """Seconds that the brokers may be unreachable before an error is raised."""
    idle_seconds: float | None = None
    """End when no message has come for this long and the brokers still answer; None: wait."""
    linger_seconds: float = 0.1
    """Seconds that a block in order of arrival may wait for more messages: the latency of a quiet stream."""
    buffer_bytes: int = 64 << 20
    """Messages that wait in memory, about."""
    client: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """Further settings of librdkafka, such as ``security.protocol``."""

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"KafkaConfig: {name} must be one of {choices}, got {getattr(self, name)!r}")
        if not self.group:
            raise ValueError("KafkaConfig: group must not be empty")
        require_at_least(self, 1, "num_workers", "block_messages", "max_record_bytes")
        require_at_least(self, 1 << 16, "buffer_bytes")
        require_positive(self, "patience_seconds", "linger_seconds")
        if self.idle_seconds is not None:
            require_positive(self, "idle_seconds")
        if not 0 <= self.worker < self.num_workers:
            raise ValueError(f"KafkaConfig: worker must be from 0 to {self.num_workers - 1}, got {self.worker}")
        if self.assignment == "group" and self.order == "fixed":
            raise ValueError('KafkaConfig: order "fixed" needs assignment "worker": a group rebalances partitions')
        if self.framing is not None:
            Framing.of(self.framing)
        SampleFormat.of(self.sample)
        if taken := sorted(OWN_SETTINGS & self.client.keys()):
            raise ValueError(f"KafkaConfig: client must leave {', '.join(taken)} alone: exact positions rest on it")
