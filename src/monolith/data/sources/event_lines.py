"""Events of a file queue as lines of a log: the CRC-32 of an event in hexadecimal, a space, and the event in JSON."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any

from monolith.errors import DataLossError

if TYPE_CHECKING:
    from monolith.data.file_queue.assignments import Event

__all__ = ["event_line", "event_of"]


def event_line(event: Event) -> bytes:
    """Returns an event as a line, with its end."""
    content = json.dumps(event, sort_keys=True, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(content), content)


def event_of(line: bytes, *, log: object, offset: int) -> Any:
    """Parses the event of a line; `log` and `offset` are its place in messages.

    Raises:
        DataLossError: the line is damaged.
    """
    checksum, _, content = line.rstrip(b"\n").partition(b" ")
    if checksum != b"%08x" % zlib.crc32(content):
        raise DataLossError(f"file queue '{log}': offset {offset}: damaged, the checksum is wrong")
    return json.loads(content)
