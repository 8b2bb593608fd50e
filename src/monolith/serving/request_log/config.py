"""Configuration of a request log."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from monolith.config import Config, config, require_positive
from monolith.online.joiner.endpoints import kafka_place

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["RequestLogConfig"]


@config
class RequestLogConfig(Config):
    """Destination of the log, share of logged requests, and sizes."""

    place: str
    """A folder, which several servers may share, or ``kafka://HOST:PORT[,HOST:PORT]/TOPIC``."""
    share: float = 0.01
    """Fraction of logged requests, sampled by request id: requests with the same id are all logged or none."""
    item_column: str | None = None
    """Column whose first id names the item of an example, as actions do; None: the number of the example in its
    request, from 0 on."""
    queue_bytes: int = 64 << 20
    """Maximum size of requests waiting to be written; further ones are not logged."""
    roll_bytes: int = 256 << 20
    """Size at which a new file is started."""
    roll_seconds: float = 3600.0
    """Age at which a new file is started."""
    kafka: Mapping[str, str] = field(default_factory=dict)
    """Further settings of librdkafka, such as ``security.protocol``."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"request log: share must be above 0 and at most 1, got {self.share:g}")
        require_positive(self, "queue_bytes", "roll_bytes", "roll_seconds")
        is_topic = kafka_place(self.place) is not None
        if not is_topic and (not self.place or "://" in self.place):
            raise ValueError(
                f"request log: place must be a folder of this machine or kafka://HOST:PORT/TOPIC, got {self.place!r}"
            )
        if self.kafka and not is_topic:
            raise ValueError(f"request log: kafka has settings, but {self.place!r} is no topic")
        if self.item_column == "":
            raise ValueError("request log: item_column must be the name of a column, got ''")
