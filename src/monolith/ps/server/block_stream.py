"""Row blocks in messages: small ones together, and large ones in chunks, so that no message is too large."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.errors import DataLossError
from monolith.rpc.protos import parameter_server_pb2 as messages
from monolith.tables.formats.row_block import RowBlock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["blocks_in", "messages_of"]

_MESSAGE_BYTES = 1 << 20
_MOST_BYTES = 1 << 32
"""Maximum size of one block: 4,096 rows of the widest kind are far below it."""


def messages_of(blocks: Iterable[RowBlock]) -> Iterator[messages.Blocks]:
    """Yields messages with the blocks."""
    parts: list[bytes] = []
    size = 0
    for block in blocks:
        rest = memoryview(block.data)
        while rest:
            room = _MESSAGE_BYTES - size
            part, rest = rest[:room], rest[room:]
            parts.append(bytes(part))
            size += len(part)
            if size == _MESSAGE_BYTES:
                yield messages.Blocks(parts=parts, is_continued=len(rest) > 0)
                parts, size = [], 0
    if parts:
        yield messages.Blocks(parts=parts)


def blocks_in(stream: Iterable[messages.Blocks]) -> Iterator[RowBlock]:
    """Yields the blocks of messages.

    Raises:
        DataLossError: the bytes are not blocks, or end within one.
    """
    begun: list[bytes] = []
    size = 0
    for message in stream:
        whole = len(message.parts) - message.is_continued
        for number, part in enumerate(message.parts):
            begun.append(part)
            size += len(part)
            if size > _MOST_BYTES:
                raise DataLossError(f"row blocks: one of at most {_MOST_BYTES} bytes expected, got {size} and more")
            if number < whole:
                yield RowBlock(b"".join(begun))
                begun, size = [], 0
    if begun:
        raise DataLossError(f"row blocks: the stream ended within a block, after {size} bytes of it")
