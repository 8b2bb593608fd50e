"""Row blocks end to end: what the payload of an increment of rows is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.errors import DataLossError
from monolith.tables.row_block import HEADER, RowBlock, block_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def payloads_of(blocks: Iterable[RowBlock], *, at_most: int) -> Iterator[bytes]:
    """The blocks end to end, in pieces of about so many bytes; nothing where there are none."""
    piece: list[bytes] = []
    size = 0
    for block in blocks:
        piece.append(block.data)
        size += len(block.data)
        if size >= at_most:
            yield b"".join(piece)
            piece, size = [], 0
    if piece:
        yield b"".join(piece)


def row_blocks(payload: bytes) -> Iterator[RowBlock]:
    """The blocks of a payload.

    Raises:
        DataLossError: the bytes are not row blocks end to end.
    """
    offset = 0
    while offset < len(payload):
        size = block_bytes(payload, offset) if len(payload) - offset >= HEADER.size else 0
        if not 0 < size <= len(payload) - offset:
            raise DataLossError(f"payload of an increment: no row block at offset {offset} of {len(payload)}")
        yield RowBlock(payload[offset : offset + size])
        offset += size
