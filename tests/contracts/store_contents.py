"""The contents of row blocks, as dictionaries that can be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from monolith.tables import NUM_BUCKETS
from monolith.tables.formats import BlockKind
from monolith.testing.reference_format import RowName

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from monolith.tables import BatchStamp, OwnerClock
    from monolith.tables.formats import RowBlock

NamedRow: TypeAlias = tuple[int, RowName]
"""A table and a row of it."""
Contents: TypeAlias = dict[NamedRow, tuple[int, bytes]]
"""Row -> (time, payload)."""


class Changes(NamedTuple):
    """The content of blocks of changes."""

    rows: Contents
    removed: set[NamedRow]
    """Removed rows; a row that was removed and inserted again is only among the rows."""


def changes_of(blocks: Iterable[RowBlock]) -> Changes:
    """Returns all rows and tombstones of some blocks; tombstones precede the rows."""
    changes = Changes({}, set())
    for block in blocks:
        if block.kind is BlockKind.FILTER:
            continue
        for key, time, payload in zip(block.keys.tolist(), block.times.tolist(), block.payload, strict=True):
            row = block.table, RowName(block.bucket, key)
            if block.kind is BlockKind.TOMBSTONE:
                changes.rows.pop(row, None)
                changes.removed.add(row)
            else:
                changes.rows[row] = (time, payload.tobytes())
                changes.removed.discard(row)
    return changes


def replay(contents: Contents, changes: Changes) -> None:
    """Applies changes to a copy of the rows."""
    for pair in changes.removed:
        contents.pop(pair, None)
    contents.update(changes.rows)


def stamps_of(clocks: Sequence[OwnerClock]) -> dict[int, BatchStamp]:
    """Returns worker -> its last batch, of owners that agree and together have all buckets."""
    end = 0
    for clock in clocks:
        require_same("buckets of an owner begin at", clock.buckets.start, end)
        require_same("batches of an owner", dict(clock.stamps), dict(clocks[0].stamps))
        end = clock.buckets.stop
    require_same("buckets of all owners end at", end, NUM_BUCKETS)
    return dict(clocks[0].stamps)


def require_same(what: str, engine: object, reference: object) -> None:
    """Raises AssertionError unless the two are equal."""
    if engine != reference:
        raise AssertionError(f"{what}: expected {reference}, got {engine}")


def require_close(what: str, engine: NDArray[np.float32], reference: NDArray[np.float32], *, exact: bool) -> None:
    """Raises AssertionError unless the two are equal bit by bit, or, if not exact, nearly."""
    if exact:
        np.testing.assert_array_equal(engine.view(np.uint32), reference.view(np.uint32), err_msg=what)
    else:
        np.testing.assert_allclose(engine, reference, rtol=1e-4, atol=1e-6, err_msg=what)


def require_same_rows(what: str, engine: Contents, reference: Contents, *, exact: bool) -> None:
    """Raises AssertionError unless ids and times are the same, and weights and state, too."""
    require_same(f"{what}: ids", sorted(engine), sorted(reference))
    for pair, (time, payload) in engine.items():
        require_same(f"{what}: time of {pair}", time, reference[pair][0])
        floats = (np.frombuffer(data, np.float32) for data in (payload, reference[pair][1]))
        require_close(f"{what}: payload of {pair}", *floats, exact=exact)
