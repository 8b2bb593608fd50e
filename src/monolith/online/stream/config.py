"""Configuration of a stream of numbered examples."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from monolith.config import Config, config, require_at_least, require_positive
from monolith.online.joiner.endpoints import kafka_place

if TYPE_CHECKING:
    from collections.abc import Mapping

PARTITION = "{partition}"
_CHOICES = ("raise", "count")


@config
class StreamConfig(Config):
    """Optional settings of a stream of examples."""

    partitions: int | None = None
    """Number of partitions; None: that of the topic, or one file."""
    linger_seconds: float = 0.05
    """How long a block that is not full may wait for more examples."""
    stall_seconds: float = 10.0
    """Seconds of silence after which the stream counts as stalled: it is reported, and all trained rows are
    published."""
    max_lag_seconds: float | None = None
    """Examples that could be known for longer than this are skipped and counted; None: none is skipped."""
    missing: str = "raise"
    """Policy for missing numbers: ``"raise"``, or ``"count"`` them and continue."""
    max_bad_records: int = 0
    """Number of messages without a number that may be skipped during the lifetime of a process."""
    stop_at_end: bool = False
    """Whether to end at the current end of the stream instead of waiting for more."""
    kafka: Mapping[str, str] = field(default_factory=dict)
    """Further settings of librdkafka, such as ``security.protocol``."""

    def __post_init__(self) -> None:
        require_positive(self, "linger_seconds", "stall_seconds")
        require_at_least(self, 0, "max_bad_records")
        if self.partitions is not None:
            require_at_least(self, 1, "partitions")
        if self.max_lag_seconds is not None:
            require_positive(self, "max_lag_seconds")
        if self.missing not in _CHOICES:
            raise ValueError(f"StreamConfig: missing must be one of {_CHOICES}, got {self.missing!r}")

    def require_place(self, place: str) -> None:
        """Rejects a place that does not fit these settings.

        Raises:
            ValueError: the place does not fit; the message explains how to correct it.
        """
        is_topic = kafka_place(place) is not None
        if self.kafka and not is_topic:
            raise ValueError(f"StreamConfig: kafka has settings, but '{place}' is no topic")
        if not is_topic and PARTITION in place and self.partitions is None:
            raise ValueError(f"StreamConfig: partitions must be given for '{place}', which is not a Kafka topic")
        if not is_topic and PARTITION not in place and (self.partitions or 1) > 1:
            raise ValueError(
                f"StreamConfig: '{place}' is one file, and partitions is {self.partitions}; write {PARTITION} where its"
                " number stands"
            )
