"""What the joiner is told: that an item was shown, and what a user did with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from monolith import _core
from monolith.errors import DataLossError
from monolith.online.joiner.protos.join_event_pb2 import JoinEvent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "Event",
    "PlainEvent",
    "action_record",
    "decode_event",
    "decode_events",
    "impression_record",
    "key_of",
    "request_of",
]

_ITEM_BYTES = 8
PlainEvent = tuple[bytes, int, bytes, tuple[int, ...]]
"""An `Event` without the names of its fields, which take longer to make than all the rest of it."""


class Event(NamedTuple):
    """An impression, which has a sample, or an action, which has actions; an impression with actions is both."""

    key: bytes
    """Request and item, see `key_of`."""
    time_ms: int
    sample: bytes
    actions: tuple[int, ...]


def key_of(request_id: bytes, item_id: int) -> bytes:
    """What impressions and actions are joined by."""
    return request_id + item_id.to_bytes(_ITEM_BYTES, "little")


def request_of(key: bytes) -> bytes:
    """The request of a key."""
    return key[:-_ITEM_BYTES]


def item_of(key: bytes) -> bytes:
    """The item of a key, as it stands on the wire."""
    return key[-_ITEM_BYTES:]


def decode_events(records: Sequence[bytes]) -> tuple[list[PlainEvent], list[tuple[int, str]]]:
    """The events of records and, of those that are none or cannot be joined, which they are and why."""
    return _core.decode_join_events(list(records))


def decode_event(record: bytes) -> Event:
    """The event of a record.

    Raises:
        DataLossError: the bytes are no event, or one that cannot be joined; says why.
    """
    events, problems = decode_events([record])
    if problems:
        raise DataLossError(problems[0][1])
    return Event(*events[0])


def impression_record(request_id: bytes, item_id: int, *, time_ms: int, sample: bytes) -> bytes:
    r"""The record of an impression, for whoever writes the input of a joiner.

    >>> decode_event(impression_record(b"r1", 7, time_ms=1000, sample=b"..."))
    Event(key=b'r1\x07\x00\x00\x00\x00\x00\x00\x00', time_ms=1000, sample=b'...', actions=())
    """
    event = JoinEvent(request_id=request_id, item_id=item_id, time_ms=time_ms, sample=sample)
    return event.SerializeToString()


def action_record(request_id: bytes, item_id: int, *, time_ms: int, actions: Iterable[int]) -> bytes:
    """The record of what a user did with an item."""
    return JoinEvent(request_id=request_id, item_id=item_id, time_ms=time_ms, actions=actions).SerializeToString()
