"""Interfaces of inputs and outputs, common to files and topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

_SCHEME = "kafka://"

JoinPosition: TypeAlias = "int | dict[str, list[int]]"
"""Position of an input: an offset, or one for each of its files. Stored as JSON."""


class Arrived(NamedTuple):
    """A batch of received records."""

    records: Sequence[bytes]
    places: Sequence[int | str]
    """Offset of each record, for messages."""
    following: JoinPosition | None
    """Position after them; None: not requested."""


class JoinInput(Protocol):
    """One partition of the impressions or of the actions. Not thread-safe."""

    name: str
    """File, or topic and partition, for messages."""

    def open(self, offset: JoinPosition | None) -> None:
        """Seeks to a position; None: the beginning of the input."""

    def read(self, limit: int) -> Arrived:
        """Returns at most `limit` records; none if none arrived within a short time."""

    def is_at_end(self) -> bool:
        """Returns whether everything available was read; False if unknown."""

    def close(self) -> None:
        """Closes files and connections."""


class JoinOutput(Protocol):
    """One partition of the examples. Not thread-safe."""

    name: str

    def open(self, place: int) -> tuple[int, int]:
        """Scans from a record boundary to the end, and seeks there.

        Returns the number of the last example after `place`, 0 if there is none, and the position of the end. Refuses
        an output that ends before `place`, or was not written by a joiner.
        """

    def append(self, packed: bytes) -> int:
        """Appends packed examples (see `examples`) durably; returns the position after them."""

    def close(self) -> None:
        """Closes files and connections."""


class KafkaPlace(NamedTuple):
    """A topic and its brokers."""

    brokers: str
    topic: str


def kafka_place(url: str) -> KafkaPlace | None:
    """Parses ``kafka://host:port,host:port/topic``; None for a path.

    >>> kafka_place("kafka://10.0.0.7:9092/clicks")
    KafkaPlace(brokers='10.0.0.7:9092', topic='clicks')
    """
    if not url.startswith(_SCHEME):
        return None
    brokers, _, topic = url.removeprefix(_SCHEME).partition("/")
    if not brokers or not topic or "/" in topic:
        raise InvalidArgumentError(f"'{url}': a topic is written kafka://HOST:PORT[,HOST:PORT]/TOPIC")
    return KafkaPlace(brokers, topic)


def plain_offset(position: JoinPosition | None, name: str) -> int:
    """Returns the offset of an input with a single offset; 0 if the input was not read yet."""
    if isinstance(position, dict):
        raise InvalidArgumentError(
            f"{name}: the state is that of several files, {', '.join(sorted(position)[:3])}; begin with another"
            " state_dir"
        )
    return position or 0
