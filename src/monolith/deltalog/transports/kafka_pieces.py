"""Splits the records of a log into messages below the brokers' size limit, and reassembles them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER_NAME = "monolith-increment"
_HEADER = struct.Struct("<QQQII")
MOST_PIECES = 1 << 20


class PieceHeader(NamedTuple):
    """Identity of the piece of a record that a message holds."""

    writer: int
    generation: int
    number: int
    piece: int
    pieces: int

    def encode(self) -> list[tuple[str, bytes]]:
        """Encodes it as the headers of a message."""
        return [(HEADER_NAME, _HEADER.pack(*self))]

    @classmethod
    def of(cls, message: Any) -> PieceHeader | None:
        """Parses the headers of a message; None if the message is not a piece."""
        for name, value in message.headers() or ():
            if name == HEADER_NAME and value is not None and len(value) == _HEADER.size:
                found = cls(*_HEADER.unpack(value))
                return found if 0 <= found.piece < found.pieces <= MOST_PIECES else None
        return None


def pieces_of(record: bytes, size: int) -> Iterator[bytes]:
    """Splits a record into pieces of at most `size` bytes."""
    return (record[begin : begin + size] for begin in range(0, len(record), size))


class Assembly:
    """Reassembly of the records of one part; pieces of several writers may interleave."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[PieceHeader, list[bytes]]] = {}

    def take(self, header: PieceHeader, value: bytes) -> bytes | None:
        """Adds a piece; returns the record that it completes, or None."""
        begun, pieces = self._open.pop(header.writer, (header, []))
        if header.piece != len(pieces) or begun[:3] + begun[4:] != header[:3] + header[4:]:
            # The writer was interrupted: a first piece restarts the record, any other piece is dropped.
            if header.piece != 0:
                return None
            begun, pieces = header, []
        pieces.append(value)
        if len(pieces) == header.pieces:
            return b"".join(pieces)
        self._open[header.writer] = (begun, pieces)
        return None
