"""History as the core offers it to stores: who follows it, what is kept, and what a cut says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from monolith import _core
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.tables import BlockKind, RowBlock, Segment, TableConfig
from monolith.tables.history import ALL_BUCKETS
from monolith.tables.local.history import row_blocks
from monolith.tables.local.native_tables import build_core_group

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_TABLE = 0
_BUCKETS = (0, len(ALL_BUCKETS))


def ids(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


@pytest.fixture
def group() -> _core.Group:
    """Rows 1 to 4, nobody following."""
    core = build_core_group([TableConfig([Segment(1)], name="t")])
    assign(core, 1, 2, 3, 4)
    return core


def assign(core: _core.Group, *values: int) -> None:
    core.assign(_TABLE, ids(*values), np.ones(len(values), np.float32), ids(0), False, 0)


def rows_and_removals(blocks: Iterable[RowBlock]) -> tuple[list[int], list[int]]:
    rows: list[int] = []
    removals: list[int] = []
    for block in blocks:
        (removals if block.kind is BlockKind.TOMBSTONE else rows).extend(block.keys.tolist())
    return sorted(rows), sorted(removals)


def changes(core: _core.Group, since: int) -> tuple[list[int], list[int]]:
    return rows_and_removals(row_blocks(core.changes(since, _BUCKETS, True)))


def test_without_a_follower_no_history_is_kept_and_changes_since_a_mark_are_rejected(group: _core.Group) -> None:
    mark = group.mark()
    group.erase(_TABLE, ids(1))
    assert group.stats(_TABLE)["tombstones"] == 0
    assert group.history_floor() > group.last_mark() == mark
    with pytest.raises(FailedPreconditionError, match="the history after epoch 1 was discarded"):
        group.changes(mark, _BUCKETS, True)


def test_changes_made_while_history_is_followed_can_be_requested(group: _core.Group) -> None:
    group.follow_history(True)
    mark = group.mark()
    assign(group, 2)
    group.erase(_TABLE, ids(1))
    assert changes(group, mark) == ([2], [1])
    group.follow_history(False)
    assert group.stats(_TABLE)["tombstones"] == 0


def test_a_touched_id_is_changed_or_removed(group: _core.Group) -> None:
    group.follow_history(True)
    mark = group.mark()
    assert group.touch(_TABLE, ids(3, 9)) == 1
    assert changes(group, mark) == ([3], [9])


def test_a_mark_to_come_is_refused(group: _core.Group) -> None:
    group.follow_history(True)
    group.mark()
    with pytest.raises(InvalidArgumentError, match="epoch 1000 has not happened yet, the last mark is 1"):
        group.changes(1000, _BUCKETS, True)
    with pytest.raises(InvalidArgumentError, match="epoch 1000 has not happened yet, the last mark is 1"):
        group.tombstones(_TABLE, 1000)


def test_a_cut_returns_what_changed_since_a_mark(group: _core.Group) -> None:
    group.follow_history(True)
    mark = group.mark()
    assign(group, 2)
    group.erase(_TABLE, ids(1))
    cut = group.cut()
    assign(group, 3)
    with pytest.raises(InvalidArgumentError, match="epoch 3 comes after this cut, which is of epoch 2"):
        cut.blocks(*_BUCKETS, True, since=cut.epoch + 1)
    assert rows_and_removals(row_blocks(cut.blocks(*_BUCKETS, True, since=mark))) == ([2], [1])


def test_files_of_a_cut_hold_what_changed_since_a_mark(group: _core.Group, tmp_path: Path) -> None:
    group.follow_history(True)
    mark = group.mark()
    assign(group, 2, 5)
    path = str(tmp_path / "rows")
    (info,) = _core.write_snapshot_files(
        group.cut(),
        [(path, *_BUCKETS)],
        snapshot_id=1,
        state=True,
        drop_expired=False,
        bytes_per_second=0,
        threads=1,
        transfer=_core.Transfer(),
        since=mark,
    )
    assert info.rows_by_table == {_TABLE: 2}
