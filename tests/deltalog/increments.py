"""Increments for tests, and transports that several test files open."""

from __future__ import annotations

from typing import Any

from monolith.deltalog import Claim, Increment, IncrementKind
from monolith.tables import BatchStamp, ChangePosition

PART = "model.0000-1024"


def increment(number: int, *, generation: int = 1, writer: int = 7, **fields: Any) -> Increment:
    """One with as little in it as there can be."""
    values: dict[str, Any] = {"part": PART, "kind": IncrementKind.ROWS, "mark": ChangePosition(0, 0, 0), **fields}
    return Increment(number=number, generation=generation, writer=writer, **values)


def opening(claim: Claim, *, writer: int = 7, part: str = PART) -> bytes:
    """The record that opens a generation."""
    fields = {"part": part, "kind": IncrementKind.OPENING, "follows": claim.follows}
    return increment(claim.number, generation=claim.generation, writer=writer, **fields).encode()


FULL = Increment(
    part="tower.0512-1024",
    kind=IncrementKind.ROWS,
    generation=3,
    writer=0x1122334455667788,
    number=41,
    mark=ChangePosition(2, 99, 17),
    step=1234,
    schema_digest=0xCAFE,
    oldest_event_ms=1_700_000_000_123,
    newest_event_ms=1_700_000_001_456,
    examples=512,
    published_ms=1_700_000_002_000,
    stamps={0: BatchStamp(worker=0, seq=9, position=b"\x00p", event_time_ms=5)},
    needs={"dense": 3},
    payload=b"rows, not a multiple of eight",
)
"""One with everything."""
