"""Records of a log as messages of a topic: cut into pieces below the limit of the brokers, and put together again."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER_NAME = "monolith-increment"
_HEADER = struct.Struct("<QQQII")
MOST_PIECES = 1 << 20


class PieceHeader(NamedTuple):
    """Which piece of which record a message is."""

    writer: int
    generation: int
    number: int
    piece: int
    pieces: int

    def encode(self) -> list[tuple[str, bytes]]:
        """As the headers of a message."""
        return [(HEADER_NAME, _HEADER.pack(*self))]

    @classmethod
    def of(cls, message: Any) -> PieceHeader | None:
        """What a message says of itself; None: it is no piece."""
        for name, value in message.headers() or ():
            if name == HEADER_NAME and value is not None and len(value) == _HEADER.size:
                found = cls(*_HEADER.unpack(value))
                return found if 0 <= found.piece < found.pieces <= MOST_PIECES else None
        return None


def pieces_of(record: bytes, size: int) -> Iterator[bytes]:
    """The record, cut."""
    return (record[begin : begin + size] for begin in range(0, len(record), size))


class Assembly:
    """Puts the pieces of one part together; those of several writers may lie between each other."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[PieceHeader, list[bytes]]] = {}

    def take(self, header: PieceHeader, value: bytes) -> bytes | None:
        """The record that this piece completes; None: it completes none."""
        begun, pieces = self._open.pop(header.writer, (header, []))
        if header.piece != len(pieces) or begun[:3] + begun[4:] != header[:3] + header[4:]:
            # A writer that broke off; what it begins anew counts, the rest of something unknown does not.
            if header.piece != 0:
                return None
            begun, pieces = header, []
        pieces.append(value)
        if len(pieces) == header.pieces:
            return b"".join(pieces)
        self._open[header.writer] = (begun, pieces)
        return None
