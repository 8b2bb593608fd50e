"""What a follower does when its log is damaged, away, foreign or of two writers: a named error, or a base behind it."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from failing_once import FailingOnce
from monolith.deltalog import DeltaLog, GapError, IncrementKind, recovery_part, rows_part
from monolith.deltalog.follow import follower as follower_module
from monolith.deltalog.publish import Trained
from monolith.deltalog.publish.local_publisher import LocalPublisher
from monolith.errors import (
    AbortedError,
    DataLossError,
    FailedPreconditionError,
    NotFoundError,
    OpError,
    PermissionDeniedError,
)
from monolith.online import DeltaPublisher, Follower
from monolith.tables import ALL_BUCKETS, LocalStore, Segment, TableConfig, TableGroup
from monolith.testing import FakeClock

PART = rows_part()


def new_store(*, serving: bool = False) -> LocalStore:
    return LocalStore({"item": TableConfig([Segment(1)], serving=serving)})


def assign(store: LocalStore, rows: dict[int, float]) -> None:
    TableGroup.of_store(store)["item"].assign(list(rows), [[value] for value in rows.values()])


def values(store: LocalStore) -> list[float]:
    found: list[float] = TableGroup.of_store(store)["item"].lookup(list(range(10))).flatten().tolist()
    return found


class Scene:
    """A log of nine increments in segments of two or three, and its trainer."""

    def __init__(self, folder: Path) -> None:
        self.log = DeltaLog(folder / "log", segment_bytes=700)
        self.trained = new_store()
        publisher = DeltaPublisher(self.trained, self.log)
        for number in range(8):
            assign(self.trained, {number: 1.0 + number})
            publisher.publish()
        publisher.close()

    @property
    def segments(self) -> list[Path]:
        return sorted((Path(self.log.place) / "parts" / PART).iterdir())

    def add_base(self) -> None:
        """Of everything."""
        self.log.save_base({"model": self.trained}, name="late", numbers={PART: 8})


def records(path: Path) -> list[bytes]:
    return [b"MDLI" + each for each in path.read_bytes().split(b"MDLI")[1:]]


def corrupt(scene: Scene) -> None:
    data = bytearray(scene.segments[1].read_bytes())
    data[200] ^= 1
    scene.segments[1].write_bytes(data)


def corrupt_newest(scene: Scene) -> None:
    """The last record of all."""
    data = bytearray(scene.segments[-1].read_bytes())
    data[-20] ^= 1
    scene.segments[-1].write_bytes(data)


def lose(scene: Scene) -> None:
    scene.segments[1].unlink()


def reorder(scene: Scene) -> None:
    found = records(scene.segments[1])
    scene.segments[1].write_bytes(b"".join([found[1], found[0], *found[2:]]))


def test_a_follower_of_a_recovery_record_reports_it(tmp_path: Path) -> None:
    with DeltaLog(tmp_path / "log") as log, log.open_writer(recovery_part(0, 1, ALL_BUCKETS)) as writer:
        writer.append(kind=IncrementKind.ROWS, payload=b"rows of another format")
    text = r"part 'ps-0-of-1\.0000-1024': .* got the recovery record of a parameter server, .*--delta_log"
    with Follower(new_store(serving=True), str(tmp_path / "log")) as follower:
        with pytest.raises(FailedPreconditionError, match=text):
            follower.catch_up()
        follower.start()
        wait_until(lambda: follower.error is not None)
        assert re.search(text, str(follower.error))


def test_a_follower_of_a_store_that_has_the_name_of_a_recovery_record_applies_its_rows(tmp_path: Path) -> None:
    trained, served = new_store(), new_store(serving=True)
    assign(trained, {3: 1.0})
    with DeltaPublisher({"ps-0-of-1": trained}, DeltaLog(tmp_path / "log")) as publisher:
        publisher.publish()
    with Follower({"ps-0-of-1": served}, str(tmp_path / "log")) as follower:
        follower.catch_up()
    assert values(served)[3] == 1.0


@pytest.mark.parametrize(
    ("harm", "error", "text"),
    [
        (corrupt, DataLossError, r"generation 1, increment \d: checksum of the record does not match"),
        (corrupt_newest, DataLossError, r"generation 1, increment 8: checksum of the record does not match"),
        (lose, GapError, r"generation 1: increments \d to \d are missing before increment \d"),
        (reorder, GapError, r"generation 1: increments? (\d) to \1 are missing before increment \d"),
    ],
    ids=["corrupt", "corrupt at the end", "missing", "reordered"],
)
def test_damage_is_named_and_a_base_after_it_is_loaded(
    tmp_path: Path, harm: Callable[[Scene], None], error: type[OpError], text: str
) -> None:
    scene = Scene(tmp_path)
    assert len(scene.segments) > 2
    harm(scene)
    served = new_store(serving=True)
    with Follower(served, scene.log) as follower:
        with pytest.raises(error, match=rf"part '{PART}', {text}.*\(file '.*log', offset \d+\)"):
            follower.catch_up()
        before = follower.version[PART]
        assert 0 < before < 8
        assert follower.lag.increments == 8 - before
        assert values(served)[:before] == values(scene.trained)[:before]  # what was whole is here
        scene.add_base()
        follower.catch_up()
        assert follower.version == {PART: 8}
        assert values(served) == values(scene.trained)


def test_a_doubled_record_is_applied_once(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    found = records(scene.segments[1])
    scene.segments[1].write_bytes(b"".join([found[0], found[0], *found[1:], found[0]]))
    numbers: list[int] = []
    with Follower(
        new_store(serving=True), scene.log, on_increment=lambda each: numbers.append(each.number)
    ) as follower:
        follower.catch_up()
    assert numbers == list(range(9))


def test_a_torn_end_counts_as_lag_until_it_is_complete(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    newest = scene.segments[-1]
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-20])
    served = new_store(serving=True)
    with Follower(served, scene.log) as follower:
        for _ in range(2):
            follower.catch_up()
            assert follower.version == {PART: 7}
            assert follower.lag == (1, len(records(newest)[-1]), 0.0)
        newest.write_bytes(whole)
        follower.catch_up()
        assert follower.lag == (0, 0, 0.0)
        assert values(served) == values(scene.trained)


def test_a_follower_of_some_buckets_names_damage_of_its_part_alone(tmp_path: Path) -> None:
    """Two owners of buckets, as parameter servers or ranks are; the newest record of one of them is damaged."""
    log = DeltaLog(tmp_path / "log")
    halves = [range(512), range(512, 1024)]
    for half in halves:
        part = LocalPublisher("model", store := new_store(), log, buckets=half)
        assign(store, {number: 1.0 + number for number in range(10)})
        part.publish(Trained())
        part.close()
    (damaged,) = (Path(log.place) / "parts" / rows_part("model", halves[1])).iterdir()
    data = bytearray(damaged.read_bytes())
    data[-20] ^= 1
    damaged.write_bytes(data)
    for buckets, is_damaged in [(range(256), False), (range(600, 700), True), (None, True)]:
        with Follower(new_store(serving=True), log, buckets=buckets) as follower:
            if is_damaged:
                with pytest.raises(DataLossError, match=rf"file '{damaged}', offset \d+"):
                    follower.catch_up()
                assert follower.lag.increments > 0
            else:
                follower.catch_up()
                assert follower.lag.increments == 0


def test_a_started_follower_stalls_at_damage_and_resumes_when_a_base_arrives(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    lose(scene)
    served = new_store(serving=True)
    with Follower(served, scene.log) as follower:
        follower.start()
        wait_until(lambda: follower.error is not None)
        assert isinstance(follower.error, GapError)
        scene.add_base()
        wait_until(lambda: follower.error is None and follower.version == {PART: 8})
        assert values(served) == values(scene.trained)


def test_a_follower_stalls_at_an_unexpected_error_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_module, "POLL_SECONDS", 0.01)
    scene = Scene(tmp_path)
    stalls: list[tuple[str, bool]] = []
    with Follower(new_store(serving=True), scene.log) as follower:
        kept = follower._apply_some

        def apply() -> bool:
            stalls.append((str(follower.error), follower.is_caught_up))
            return kept()

        failing = FailingOnce(apply, thread="monolith-follower")
        follower._apply_some = failing  # type: ignore[method-assign]
        follower.is_caught_up = True
        follower.start()
        failing.require_survived()
        assert stalls[0] == (f"follower of '{scene.log.place}': {failing.error!r}", False)
        wait_until(lambda: follower.error is None and follower.is_caught_up)


def wait_until(holds: Callable[[], bool]) -> None:
    for _ in range(3000):
        if holds():
            return
        threading.Event().wait(0.02)
    raise AssertionError("it never came to hold")


def test_an_opening_whose_base_has_gone_is_a_gap_and_a_later_base_heals_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    second = new_store()
    assign(second, {3: 33.0})
    publisher = DeltaPublisher(second, scene.log)
    publisher.publish()
    publisher.close()
    (base,) = scene.log.bases()
    with Follower(new_store(serving=True), DeltaLog(scene.log.place)) as behind:
        scene.log.remove_base(base.name)
        opening = base.numbers[PART]
        with pytest.raises(GapError, match=f"increment {opening} begins with base '{base.name}', which does not exist"):
            behind.catch_up()
        scene.log.save_base({"model": second}, name="again", numbers={PART: opening})
        behind.catch_up()
        assert behind.version == {PART: publisher_last(scene.log)}


def publisher_last(log: DeltaLog) -> int:
    return log.position()[PART]


def test_a_base_that_is_damaged_is_passed_over_for_an_older_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(tmp_path)
    scene.log.save_base({"model": scene.trained}, name="whole", numbers={PART: 6})
    scene.add_base()
    for file in (Path(scene.log.place) / "bases" / "late" / "model").iterdir():
        file.write_bytes(b"")
    served = new_store(serving=True)
    with Follower(served, scene.log) as follower:
        follower.catch_up()
    assert values(served) == values(scene.trained)
    assert "base 'late' cannot be used, and is passed over" in caplog.text


def test_a_log_that_is_missing_is_named_and_waited_for(tmp_path: Path) -> None:
    served = new_store(serving=True)
    with Follower(served, str(tmp_path / "log")) as follower:
        with pytest.raises(NotFoundError, match=f"'{tmp_path}/log': there is no delta log"):
            follower.catch_up()
        follower.start()
        scene = Scene(tmp_path)
        wait_until(lambda: follower.version == {PART: 8})
        assert values(served) == values(scene.trained)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_log_that_cannot_be_written_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    log = DeltaLog(tmp_path / "log")
    store, served = new_store(), new_store(serving=True)
    publisher = DeltaPublisher(store, log)

    def refuse(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        for value in (1.0, 2.0):
            assign(store, {1: value})
            with pytest.raises(OpError, match=os.strerror(number)) as raised:
                publisher.publish()
            assert isinstance(raised.value, PermissionDeniedError) or number != errno.EACCES
    assert publisher.failures == 2
    publisher.publish()
    publisher.close()
    with Follower(served, log) as follower:
        follower.catch_up()
    assert values(served) == values(store)


def test_of_two_writers_the_later_one_has_the_log_and_followers_never_go_back(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    first, second = new_store(), new_store()
    served = new_store(serving=True)
    versions: list[int] = []
    with Follower(served, scene.log, on_increment=lambda each: versions.append(each.number)) as follower:
        one = DeltaPublisher(first, scene.log)
        one.publish()
        two = DeltaPublisher(second, scene.log)
        for value in (5.0, 6.0):
            assign(first, {1: -value})
            assign(second, {1: value})
            two.publish()
            with pytest.raises(AbortedError, match=f"part '{PART}': another writer has the part now, with generation"):
                one.publish()
            follower.catch_up()
        one.close()
        two.close()
        follower.catch_up()
    assert values(served) == values(second)
    assert versions == sorted(set(versions))


def test_a_clock_that_is_put_back_makes_neither_lag_nor_staleness_negative(tmp_path: Path) -> None:
    clock = FakeClock(5000.0)
    log = DeltaLog(tmp_path / "log", clock=clock)
    store = new_store()
    publisher = DeltaPublisher(store, log, clock=clock)
    publisher.tally.add(Trained(examples=1, oldest_event_ms=4_990_000))
    publisher.publish()
    behind = FakeClock(100.0)
    with Follower(new_store(serving=True), DeltaLog(log.place, clock=behind), clock=behind) as follower:
        follower.catch_up()
        assert follower.staleness == (0.0, 0.0, 0.0)
        assign(store, {1: 1.0})
        publisher.publish()
        assert follower.lag.increments == 1
        assert follower.lag.seconds == 0.0
    publisher.close()
