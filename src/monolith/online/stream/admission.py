"""The settings of a stream, and whether a numbered example is trained, skipped, or an error. Pure: no files, no clocks.

A position in a stream holds the number of the last example of each partition.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from monolith.config import Config, config, require_at_least, require_positive
from monolith.data import SavedPosition, encode_position, known_examples
from monolith.errors import DataLossError, InvalidArgumentError
from monolith.online.joiner.endpoints import kafka_place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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


@dataclass(slots=True)
class StreamCounts:
    """Counts during the lifetime of a process."""

    examples: int = 0
    """Examples returned for training."""
    repeated: int = 0
    """Skipped, since their numbers were already seen, for example after the stream was rewound."""
    missing: int = 0
    """Numbers that never arrived, if the stream is configured to count them."""
    too_old: int = 0
    """Skipped, since they could be known for longer than `max_lag_seconds`."""
    ahead: int = 0
    """Trained, but with a time in the future, which was replaced by that of the clock."""
    bad: int = 0
    """Skipped messages without a number."""

    def to_dict(self) -> dict[str, int]:
        """Returns the counts as plain numbers."""
        return asdict(self)


_log = logging.getLogger(__name__)

_AHEAD_MS = 1000
"""Clock skew between two machines that is not counted as ahead."""


class Reached(NamedTuple):
    """Position in a partition."""

    number: int = 0
    """Number of the last returned or skipped example; 0: none."""
    place: int | None = None
    """Byte of the file or offset of the topic of that example; None: none. A reader that resumes there finds that
    example first, or detects that the file or topic was replaced."""


class Admission:
    """Filter that admits each number of each partition once. Not thread-safe. Every example updates `reached`."""

    def __init__(self, name: str, config: StreamConfig, counts: StreamCounts, reached: list[Reached]) -> None:
        self._name = name
        self._config = config
        self._counts = counts
        self.reached = reached

    def admit(self, partition: int, number: int, known_ms: int, *, place: int, now_ms: int) -> int | None:
        """Returns the earliest time at which an example could be known if it is to be trained, else None."""
        last = self.reached[partition].number
        if number <= last:
            self._repeat(partition, number, last)
            return None
        if number > last + 1 and last:
            self._miss(partition, number, last)
        self.reached[partition] = Reached(number, place)
        if known_ms > now_ms:
            self._counts.ahead += known_ms > now_ms + _AHEAD_MS
            known_ms = now_ms
        limit = self._config.max_lag_seconds
        if limit is not None and now_ms - known_ms > 1000 * limit:
            self._counts.too_old += 1
            return None
        self._counts.examples += 1
        return known_ms

    def _repeat(self, partition: int, number: int, last: int) -> None:
        if not self._counts.repeated:
            _log.warning(
                "%s, partition %d: example %d repeats after %d; repeated examples are skipped; if the joiner"
                " was restarted with another state_dir, train its examples with another model_dir",
                self._name,
                partition,
                number,
                last,
            )
        self._counts.repeated += 1

    def _miss(self, partition: int, number: int, last: int) -> None:
        missing = number - last - 1
        text = f"{self._name}, partition {partition}: example {number} follows {last}, {missing} are missing"
        if self._config.missing == "raise":
            raise DataLossError(
                f"{text}; they were deleted before they were trained, or the joiner wrote to two places: restore them,"
                ' or continue without them by missing="count" (--stream_missing count)'
            )
        _log.warning("%s, and are counted", text)
        self._counts.missing += missing


_KIND = "example_stream"


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """Contents of a position."""

    reached: Sequence[Reached] = ()
    """Position of each partition."""
    examples: int = 0
    """Total number of examples returned so far."""

    def to_bytes(self, stream: str, known_ms: tuple[int, int]) -> bytes:
        """Encodes the position and the times at which the oldest and newest example of the last block became known."""
        partitions = [list(reached) for reached in self.reached]
        progress = {"known_ms": list(known_ms), "examples": self.examples}
        return encode_position(_KIND, {"stream": stream, "partitions": partitions, **progress})

    @classmethod
    def from_bytes(cls, position: bytes, *, stream: str) -> StreamPosition:
        """Decodes the output of `to_bytes`; refuses a position of another stream."""
        saved = SavedPosition(position, _KIND).require_same(stream=stream)
        reached: list[Reached] = []
        for pair in saved.values("partitions"):
            if not _is_reached(pair):
                raise InvalidArgumentError(f"position in stream {stream!r}: expected [number, place], got {pair!r}")
            reached.append(Reached(*pair))
        return cls(reached, known_examples(position) or 0)  # older positions lack the field

    def of_partitions(self, count: int) -> list[Reached]:
        """Returns the positions of `count` partitions; new partitions start at the beginning."""
        if len(self.reached) > count:
            raise InvalidArgumentError(
                f"position in a stream: it is of {len(self.reached)} partitions, and there are {count}; give partitions"
                " as before (--stream_partitions)"
            )
        return [*self.reached, *[Reached()] * (count - len(self.reached))]


def _is_reached(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    number, place = value
    is_number = isinstance(number, int) and not isinstance(number, bool) and number >= 0
    return is_number and (place is None or (isinstance(place, int) and place >= 0))
