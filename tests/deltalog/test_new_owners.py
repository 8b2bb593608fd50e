"""Other owners take over the rows of a log: followers come to what the new ones hold, wherever they begin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from monolith.deltalog.publish.log_position import LogPosition
from monolith.errors import AbortedError
from monolith.online import DeltaPublisher, Follower
from monolith.tables import LocalStore, Segment, TableConfig, TableGroup

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

HALVES = (range(512), range(512, 1024))
IDS = list(range(200))


def new_store(*, serving: bool = False) -> LocalStore:
    return LocalStore({"item": TableConfig([Segment(1)], serving=serving)})


def values(store: LocalStore) -> dict[int, float]:
    group = TableGroup.of_store(store)["item"]
    return {each: float(row[0]) for each, row in zip(IDS, group.lookup(IDS), strict=True)}


def test_what_others_wrote_before_never_comes_over_the_base_of_a_new_owner(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    before, after = new_store(), new_store()
    TableGroup.of_store(before)["item"].assign(IDS, [[1.0]] * 200)
    TableGroup.of_store(after)["item"].assign(IDS[:100], [[2.0]] * 100)
    followed = new_store(serving=True)
    with Follower(followed, log) as early:
        with DeltaPublisher(before, log) as one:
            one.publish()
        early.catch_up()
        owners = [DeltaPublisher(after, log, buckets=half) for half in HALVES]
        for owner in owners:  # nobody knows where the log was: they begin at bases
            owner.publish()
        TableGroup.of_store(after)["item"].assign([7], [[3.0]])
        for owner in owners:
            owner.publish()
            owner.close()
        early.catch_up()
        assert values(followed) == values(after)
    late = new_store(serving=True)
    with Follower(late, log) as follower:
        follower.catch_up()
        assert follower.version == early.version
    assert values(late) == values(after)


def owners_of(store: LocalStore, log: str, ranges: Sequence[range], **options: Any) -> list[DeltaPublisher]:
    return [DeltaPublisher(store, log, buckets=each, **options) for each in ranges]


def first_state() -> LocalStore:
    """What a checkpoint holds."""
    store = new_store()
    TableGroup.of_store(store)["item"].assign(IDS[:100], [[1.0]] * 100)
    return store


@pytest.mark.parametrize(
    "after", [(range(342), range(342, 683), range(683, 1024)), (range(1024),)], ids=["three servers", "one process"]
)
def test_a_rollback_to_a_checkpoint_of_other_owners_republishes_what_they_logged_after_it(
    tmp_path: Path, after: Sequence[range]
) -> None:
    """Two owners publish on behind a checkpoint; others, who share the rows otherwise, go back to it."""
    log = str(tmp_path / "log")
    store = first_state()
    owners = owners_of(store, log, HALVES)
    for owner in owners:
        owner.publish()
        owner.before_cut()
    with store.cut() as cut:
        marks = {"model": cut.mark}
    position = LogPosition.of_all(owner.after_cut(marks, step=5) for owner in owners)
    followed = new_store(serving=True)
    with Follower(followed, log) as early:
        group = TableGroup.of_store(store)["item"]
        group.assign(IDS[50:], [[8.0]] * 150)  # 100 new ids are among them
        for owner in owners:
            owner.publish()
        early.catch_up()
        assert values(followed) == values(store)
        restored = first_state()
        others = owners_of(restored, log, after, restored=position)
        for other in others:
            other.publish()
        assert others[0].log.bases() == [], "what was logged behind the checkpoint is published again, and no base"
        early.catch_up()
        assert values(followed) == values(restored)
        assert len(TableGroup.of_store(followed)["item"]) == 100, "ids that came behind the checkpoint are gone"
        group.assign(IDS, [[9.0]] * 200)
        for owner in owners:
            with pytest.raises(AbortedError, match="another writer has the part"):
                owner.publish()
        for each in (*owners, *others):
            each.close()
    late = new_store(serving=True)
    with Follower(late, log) as follower:
        follower.catch_up()
    assert values(late) == values(restored)
    assert len(TableGroup.of_store(late)["item"]) == 100
