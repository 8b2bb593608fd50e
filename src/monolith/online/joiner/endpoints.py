"""Where events come from and examples go to: what a file and a topic have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Arrived", "JoinInput", "JoinOutput", "JoinPosition", "KafkaPlace", "kafka_place", "plain_offset"]

_SCHEME = "kafka://"

JoinPosition: TypeAlias = "int | dict[str, list[int]]"
"""How far an input was read: an offset, or one for each of its files. It is kept as JSON."""


class Arrived(NamedTuple):
    """Records that came."""

    records: Sequence[bytes]
    places: Sequence[int | str]
    """The offset of each, for messages."""
    following: JoinPosition | None
    """Where to go on behind them; None: nobody asked."""


class JoinInput(Protocol):
    """One partition of the impressions or of the actions. Belongs to one thread."""

    name: str
    """For messages: file, or topic and partition."""

    def open(self, offset: JoinPosition | None) -> None:
        """Goes to a position; None: where an input begins that nobody has read."""
        ...

    def read(self, limit: int) -> Arrived:
        """At most `limit` records; none when none came in a short time."""
        ...

    def is_at_end(self) -> bool:
        """Whether nothing is there that was not read; False when nobody can tell."""
        ...

    def close(self) -> None:
        """Closes files and connections."""
        ...


class JoinOutput(Protocol):
    """One partition of the examples. Belongs to one thread."""

    name: str

    def open(self, place: int) -> tuple[int, int]:
        """Looks behind a place at which a record began or begins, and goes to the end.

        Returns:
            The number of the last example behind that place, 0 if there is none, and the place of the end.

        Raises:
            DataLossError: the output ends before that place, or is not that of a joiner.
        """
        ...

    def append(self, packed: bytes) -> int:
        """Appends packed examples, see `numbered`; they are safe when it returns the place behind them."""
        ...

    def close(self) -> None:
        """Closes files and connections."""
        ...


class KafkaPlace(NamedTuple):
    """A topic and its brokers."""

    brokers: str
    topic: str


def kafka_place(url: str) -> KafkaPlace | None:
    """What ``kafka://host:port,host:port/topic`` means; None for what is a path.

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
    """The offset of an input that has one; 0 where nobody has read it.

    Raises:
        InvalidArgumentError: it is the position of several files.
    """
    if isinstance(position, dict):
        raise InvalidArgumentError(
            f"{name}: the state is that of several files, {', '.join(sorted(position)[:3])}; begin with another"
            " state_dir"
        )
    return position or 0
