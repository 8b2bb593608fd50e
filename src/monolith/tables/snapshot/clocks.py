"""The clocks of owners as JSON values, for manifests. Grammar: docs/formats/snapshot.md."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from monolith.tables.batch import BatchStamp
from monolith.tables.history import ALL_BUCKETS, OwnerClock, bucket_bounds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def clocks_json(clocks: Sequence[OwnerClock]) -> Any:
    """Returns the clocks as `clocks_from_json` reads them."""
    return [
        {"buckets": [clock.buckets.start, clock.buckets.stop], "stamps": stamps_json(clock.stamps)} for clock in clocks
    ]


def clocks_from_json(clocks: Any) -> tuple[OwnerClock, ...]:
    """Parses what `clocks_json` made, or a manifest of version 1: one set of stamps for all buckets, or any JSON value.

    Raises:
        KeyError, TypeError, ValueError: it is neither of them.
    """
    if not isinstance(clocks, list):
        stamps = stamps_from_json(clocks) if isinstance(clocks, dict) and _are_stamps(clocks) else {}
        return (OwnerClock(ALL_BUCKETS, stamps),) if stamps else ()
    found = tuple(OwnerClock(range(*each["buckets"]), stamps_from_json(each["stamps"])) for each in clocks)
    for clock in found:
        bucket_bounds(clock.buckets)
    return found


def stamps_json(stamps: Mapping[int, BatchStamp]) -> Any:
    """Returns worker -> its stamp."""
    return {
        str(worker): {
            "seq": stamp.seq,
            "position": base64.b64encode(stamp.position).decode(),
            "event_time_ms": stamp.event_time_ms,
        }
        for worker, stamp in stamps.items()
    }


def stamps_from_json(stamps: Mapping[str, Any]) -> dict[int, BatchStamp]:
    """Parses what `stamps_json` made; version 1 had the event's time in seconds."""
    return {
        int(worker): BatchStamp(
            worker=int(worker),
            seq=stamp["seq"],
            position=base64.b64decode(stamp["position"], validate=True),
            event_time_ms=stamp["event_time_ms"] if "event_time_ms" in stamp else 1000 * stamp["event_time"],
        )
        for worker, stamp in stamps.items()
    }


def _are_stamps(values: Mapping[str, Any]) -> bool:
    """Returns whether these are stamps: version 1 let callers of `save` put any value here."""
    return all(
        worker.isdigit() and isinstance(stamp, dict) and stamp.keys() == {"seq", "position", "event_time"}
        for worker, stamp in values.items()
    )
