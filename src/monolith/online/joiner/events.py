"""Events of the joiner: an item was shown (impression), or a user acted on it (action)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from monolith import _core
from monolith.errors import DataLossError
from monolith.online.joiner.protos.join_event_pb2 import JoinEvent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_ITEM_BYTES = 8
PlainEvent = tuple[bytes, int, bytes, tuple[int, ...]]
"""An `Event` as a plain tuple: creating the named tuple would dominate the cost of decoding."""


class Event(NamedTuple):
    """An impression, which has a sample, or an action, which has actions; an impression with actions is both."""

    key: bytes
    """Request and item, see `key_of`."""
    time_ms: int
    sample: bytes
    actions: tuple[int, ...]


def key_of(request_id: bytes, item_id: int) -> bytes:
    """Returns the join key of impressions and actions."""
    return request_id + item_id.to_bytes(_ITEM_BYTES, "little")


def request_of(key: bytes) -> bytes:
    """Returns the request of a key."""
    return key[:-_ITEM_BYTES]


def item_of(key: bytes) -> bytes:
    """Returns the item of a key, as encoded on the wire."""
    return key[-_ITEM_BYTES:]


def decode_events(records: Sequence[bytes]) -> tuple[list[PlainEvent], list[tuple[int, str]]]:
    """Decodes records into events; returns also the index of and reason for each record that cannot be joined."""
    return _core.decode_join_events(list(records))


def decode_event(record: bytes) -> Event:
    """Decodes the event of a record.

    Raises:
        DataLossError: the bytes are no event, or one that cannot be joined; the message gives the reason.
    """
    events, problems = decode_events([record])
    if problems:
        raise DataLossError(problems[0][1])
    return Event(*events[0])


def impression_record(request_id: bytes, item_id: int, *, time_ms: int, sample: bytes) -> bytes:
    r"""Encodes an impression as a record, for writers of a joiner's input.

    >>> decode_event(impression_record(b"r1", 7, time_ms=1000, sample=b"..."))
    Event(key=b'r1\x07\x00\x00\x00\x00\x00\x00\x00', time_ms=1000, sample=b'...', actions=())
    """
    event = JoinEvent(request_id=request_id, item_id=item_id, time_ms=time_ms, sample=sample)
    return event.SerializeToString()


def action_record(request_id: bytes, item_id: int, *, time_ms: int, actions: Iterable[int]) -> bytes:
    """Encodes the actions of a user on an item as a record."""
    return JoinEvent(request_id=request_id, item_id=item_id, time_ms=time_ms, actions=actions).SerializeToString()
