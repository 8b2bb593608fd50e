"""Where the reading of a stream stands: the number of the last example of each partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monolith.data.position import SavedPosition, encode_position, known_examples
from monolith.errors import InvalidArgumentError
from monolith.online.stream.admission import Reached

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["StreamPosition"]

_KIND = "example_stream"


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """What a position holds."""

    reached: Sequence[Reached] = ()
    """Of each partition."""
    examples: int = 0
    """Handed out until here, from the beginning on."""

    def to_bytes(self, stream: str, known_ms: tuple[int, int]) -> bytes:
        """As bytes, with the times since when the oldest and the newest example of the last block could be known."""
        partitions = [list(each) for each in self.reached]
        told = {"known_ms": list(known_ms), "examples": self.examples}
        return encode_position(_KIND, {"stream": stream, "partitions": partitions, **told})

    @classmethod
    def from_bytes(cls, position: bytes, *, stream: str) -> StreamPosition:
        """What `to_bytes` gave.

        Raises:
            InvalidArgumentError: it is of another stream.
        """
        saved = SavedPosition(position, _KIND).require_same(stream=stream)
        reached: list[Reached] = []
        for each in saved.values("partitions"):
            if not _is_reached(each):
                raise InvalidArgumentError(f"position in stream {stream!r}: expected [number, place], got {each!r}")
            reached.append(Reached(*each))
        return cls(reached, known_examples(position) or 0)  # a position may be older than its field

    def of_partitions(self, count: int) -> list[Reached]:
        """For so many partitions; those that are new begin.

        Raises:
            InvalidArgumentError: there were more.
        """
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
