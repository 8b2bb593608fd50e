"""How a stream of numbered examples is read."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from monolith.config import Config, config, require_at_least, require_positive
from monolith.online.joiner.endpoints import kafka_place

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PARTITION", "StreamConfig"]

PARTITION = "{partition}"
_CHOICES = ("raise", "count")


@config
class StreamConfig(Config):
    """Everything about a stream of examples that has a default."""

    partitions: int | None = None
    """How many there are; None: as many as the topic has, or one file."""
    linger_seconds: float = 0.05
    """How long a block that is not full may wait for more examples."""
    stall_seconds: float = 10.0
    """After so much silence the stream counts as stalled: it is said, and everything trained goes out."""
    max_lag_seconds: float | None = None
    """Examples that could be known longer than this are left out, and counted; None: nothing is left out."""
    missing: str = "raise"
    """What to do when numbers are missing: ``"raise"``, or ``"count"`` them and go on."""
    max_bad_records: int = 0
    """Messages without a number that may be left out, in the life of a process."""
    stop_at_end: bool = False
    """End with what is there now, instead of waiting for more."""
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
        """Refuses a place that these settings do not fit.

        Raises:
            ValueError: says what to give.
        """
        is_topic = kafka_place(place) is not None
        if self.kafka and not is_topic:
            raise ValueError(f"StreamConfig: kafka has settings, but '{place}' is no topic")
        if not is_topic and PARTITION in place and self.partitions is None:
            raise ValueError(f"StreamConfig: partitions must be given for '{place}': files do not tell how many")
        if not is_topic and PARTITION not in place and (self.partitions or 1) > 1:
            raise ValueError(
                f"StreamConfig: '{place}' is one file, and partitions is {self.partitions}; write {PARTITION} where its"
                " number stands"
            )
