"""Position in a stream: the number of the last example of each partition."""

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
    """Contents of a position."""

    reached: Sequence[Reached] = ()
    """Position of each partition."""
    examples: int = 0
    """Total number of examples returned so far."""

    def to_bytes(self, stream: str, known_ms: tuple[int, int]) -> bytes:
        """Encodes the position and the times at which the oldest and newest example of the last block became known."""
        partitions = [list(each) for each in self.reached]
        told = {"known_ms": list(known_ms), "examples": self.examples}
        return encode_position(_KIND, {"stream": stream, "partitions": partitions, **told})

    @classmethod
    def from_bytes(cls, position: bytes, *, stream: str) -> StreamPosition:
        """Decodes the output of `to_bytes`.

        Raises:
            InvalidArgumentError: the position belongs to another stream.
        """
        saved = SavedPosition(position, _KIND).require_same(stream=stream)
        reached: list[Reached] = []
        for each in saved.values("partitions"):
            if not _is_reached(each):
                raise InvalidArgumentError(f"position in stream {stream!r}: expected [number, place], got {each!r}")
            reached.append(Reached(*each))
        return cls(reached, known_examples(position) or 0)  # older positions lack the field

    def of_partitions(self, count: int) -> list[Reached]:
        """Returns the positions of `count` partitions; new partitions start at the beginning.

        Raises:
            InvalidArgumentError: the position has more partitions.
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
