"""Other owners take over the rows of a log: followers come to what the new ones hold, wherever they begin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.online import DeltaPublisher, Follower
from monolith.tables import LocalStore, Segment, TableConfig, TableGroup

if TYPE_CHECKING:
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
