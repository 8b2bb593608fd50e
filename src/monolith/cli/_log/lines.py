"""One increment as a line, and as JSON."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from monolith.deltalog import IncrementKind
from monolith.errors import DataLossError
from monolith.tables.formats.packed_blocks import PackedBlocks
from monolith.tables.formats.row_block import BlockKind

if TYPE_CHECKING:
    from monolith.deltalog import Increment

_FORM = "{:<24} {:>8} {:>10} {:<8} {:>19} {:>9} {:>9} {:>8} {:>9} {:>12}"
HEAD = _FORM.format(
    "part", "number", "generation", "kind", "written", "step", "examples", "rows", "removed", "bytes"
).rstrip()


def document_of(found: Increment) -> dict[str, Any]:
    """Everything but the payload."""
    rows, removed = _counts(found)
    return {
        "part": found.part,
        "number": found.number,
        "generation": found.generation,
        "kind": found.kind.name.lower(),
        "step": found.step,
        "examples": found.examples,
        "oldest_event_ms": found.oldest_event_ms,
        "newest_event_ms": found.newest_event_ms,
        "published_ms": found.published_ms,
        "rows": rows,
        "removed": removed,
        "bytes": len(found.payload),
        "mark": list(found.mark),
        "needs": dict(found.needs),
        "base": found.base,
        "schema": found.payload.decode(errors="replace") if found.kind is IncrementKind.OPENING else None,
    }


def line_of(found: Increment) -> str:
    """Describes an increment in one line."""
    rows, removed = _counts(found)
    kind = found.kind.name.lower()
    written = "" if not found.published_ms else time_text(found.published_ms)
    numbers = (f"{each:,}" for each in (found.step, found.examples, rows, removed, len(found.payload)))
    line = _FORM.format(found.part, found.number, found.generation, kind, written, *numbers)
    return line + (f"  begins with base {found.base}" if found.base is not None else "")


def time_text(milliseconds: int) -> str:
    """Returns a time as local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(milliseconds / 1000))


def _counts(found: Increment) -> tuple[int, int]:
    """Rows, and ids that were removed."""
    if found.kind is not IncrementKind.ROWS or not found.payload:
        return 0, 0
    counts = {BlockKind.SERVING: 0, BlockKind.TOMBSTONE: 0}
    try:
        for block in PackedBlocks(found.payload):
            counts[block.kind] = counts.get(block.kind, 0) + block.count
    except DataLossError as error:
        raise DataLossError(f"part {found.part!r}, increment {found.number}: {error.message}") from error
    return counts[BlockKind.SERVING], counts[BlockKind.TOMBSTONE]
