"""Configuration of a joiner process."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from monolith.config import Config, config, require_at_least
from monolith.data.records.framing import Framing
from monolith.online.joiner.endpoints import kafka_place
from monolith.online.joiner.rules import JoinRules

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["JoinerConfig"]

_PARTITION = "{partition}"


@config
class JoinerConfig(Config):
    """Sources of events, destination of examples, and how events are joined.

    A place is ``kafka://HOST:PORT[,HOST:PORT]/TOPIC``, or a path with ``{partition}`` in it. The path of an input may
    have a ``*`` in its last component, for rotated files such as those of a request log. Events of one request must be
    in partitions of the same number: write both topics with the request as key.
    """

    impressions: str
    actions: str
    output: str
    state_dir: str
    """Folder for the state of every partition, on a file system that all joiner processes share, or of one machine."""
    rules: JoinRules = field(default_factory=JoinRules)
    partitions: int | None = None
    """Number of partitions; None: that of the impressions topic."""
    num_joiners: int = 1
    """Number of processes that share the partitions; each claims at most an equal share of the free ones. A process
    that finds none waits until one is free."""
    sample: str = "example"
    """Message type of the samples of impressions: ``"example"`` or ``"instance"``."""
    framing: str = "plain"
    """Framing of the records in input files."""
    memory_bytes: int = 1 << 30
    """Memory for undecided entries, over all partitions of this process; entries beyond it are kept on disk only."""
    max_state_bytes: int | None = None
    """Maximum size of the state of one partition on disk; None: unlimited."""
    max_bad_records: int = 0
    """Number of unreadable records that may be skipped during the lifetime of a process."""
    stop_at_end: bool = False
    """Whether to close all windows and exit when all inputs have been read."""
    kafka: Mapping[str, str] = field(default_factory=dict)
    """Further settings of librdkafka, such as ``security.protocol``."""

    def __post_init__(self) -> None:
        require_at_least(self, 1, "num_joiners")
        require_at_least(self, 0, "max_bad_records")
        require_at_least(self, 1 << 16, "memory_bytes")
        Framing.of(self.framing)
        topics = []
        for name in ("impressions", "actions", "output"):
            place = getattr(self, name)
            topic = kafka_place(place)
            topics.append(topic)
            if topic is None and _PARTITION not in place and self.partitions != 1:
                raise ValueError(
                    f"JoinerConfig: {name} must be kafka://HOST:PORT/TOPIC or a path with {_PARTITION} in it, got"
                    f" '{place}'; or give partitions=1"
                )
        _require_patterns(self)
        if len({self.impressions, self.actions, self.output}) < 3:
            raise ValueError("JoinerConfig: impressions, actions and output must be three different places")
        if self.kafka and not any(topics):
            raise ValueError("JoinerConfig: kafka has settings, but no place is a topic")
        if self.partitions is not None:
            require_at_least(self, 1, "partitions")
        elif topics[0] is None:
            raise ValueError("JoinerConfig: partitions must be given unless impressions is a Kafka topic")

    def path(self, place: str, number: int) -> str:
        """Returns the file of a partition."""
        return place.replace(_PARTITION, f"{number:05d}")


def _require_patterns(config: JoinerConfig) -> None:
    if "*" in config.output:
        raise ValueError(f"JoinerConfig: output must be one place, got the pattern '{config.output}'")
    for name in ("impressions", "actions"):
        place: str = getattr(config, name)
        if "*" in place.rpartition("/")[0]:
            raise ValueError(f"JoinerConfig: {name} may have a '*' in its last part only, got '{place}'")
