"""Followers come to what the trainer holds, bit for bit, whatever dies, fails, or is put back in between."""

from __future__ import annotations

import errno
import math
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from failing_once import FailingOnce
from monolith import _core
from monolith.checkpoint import Saver, TrainState
from monolith.deltalog import DENSE_PART, DeltaLog, GapError, rows_part
from monolith.deltalog.follow import follower as follower_module
from monolith.deltalog.publish import Trained, serving_schema
from monolith.deltalog.publish.erasing import erase_from_checkpoint
from monolith.deltalog.publish.log_position import POSITION_NAME, LogPosition
from monolith.errors import (
    AbortedError,
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
)
from monolith.nn import Embeddings, Slot
from monolith.online import DeltaPublisher, Follower
from monolith.tables import BlockKind, LocalStore, RowBlock, Segment, TableConfig, TableGroup, compressors
from monolith.tables.formats.row_block import HEADER, MAGIC, TRAILER, VERSION
from monolith.testing import FakeClock

PART = rows_part()


def trained_store(dim: int = 2) -> LocalStore:
    return LocalStore({"item": TableConfig([Segment(dim, compressor=compressors.Fp16())])})


def serving_store(dim: int = 2) -> LocalStore:
    return LocalStore({"item": TableConfig([Segment(dim, compressor=compressors.Fp16())], serving=True)})


def assign(store: LocalStore, rows: dict[int, float]) -> None:
    TableGroup.of_store(store)["item"].assign(list(rows), [[value, value] for value in rows.values()])


def remove(store: LocalStore, ids: list[int]) -> None:
    """As expiry does it: rows go, and their readers hear of it."""
    table = store.schema.tables[0]
    tombstones = []
    for each in ids:
        bucket = int(_core.bucket_of(np.array([each]))[0])
        head = HEADER.pack(MAGIC, VERSION, BlockKind.TOMBSTONE, 0, table.digest, 0, bucket, 1, 0, 0, 0)
        body = head + np.int64(each).tobytes() + bytes(8)
        tombstones.append(RowBlock(body + TRAILER.pack(_core.crc32c(body), 0)))
    assert store.load(tombstones, buckets=range(1024), replace=False).tombstones == len(ids)


def blocks(store: LocalStore) -> list[tuple[object, ...]]:
    """Everything that serving sees of a store: keys, times and compressed bytes."""
    with store.cut() as cut:
        found = [
            (block.bucket, int(key), int(time), bytes(row))
            for block in cut.blocks(range(1024), state=False)
            if block.kind.name == "SERVING"
            for key, time, row in zip(block.keys, block.times, block.payload, strict=True)
        ]
    return sorted(found)


def followed(log: DeltaLog | Path | str) -> LocalStore:
    store = serving_store()
    with Follower(store, log if isinstance(log, DeltaLog) else str(log)) as follower:
        follower.catch_up()
    return store


def test_a_follower_has_rows_times_and_removals_bit_for_bit(tmp_path: Path) -> None:
    store = trained_store()
    assign(store, {5: 0.5})  # was there before anybody published
    publisher = DeltaPublisher(store, str(tmp_path / "log"), record_bytes=200)
    served = serving_store()
    with Follower(served, str(tmp_path / "log")) as follower:
        for number in range(3):
            assign(store, {each: number + each / 7 for each in range(number, 40)})
            remove(store, [number])
            assert publisher.publish() > 1  # cut into several increments
            follower.catch_up()
            assert blocks(served) == blocks(store)
        assert follower.version == publisher.numbers
        assert follower.lag == (0, 0, 0.0)
    publisher.close()
    assert blocks(followed(tmp_path / "log")) == blocks(store)


def test_nothing_is_written_where_nothing_changed(tmp_path: Path) -> None:
    store = trained_store()
    publisher = DeltaPublisher(store, str(tmp_path / "log"))
    assign(store, {1: 1.0})
    assert [publisher.publish(), publisher.publish()] == [1, 0]
    publisher.tally.add(Trained(examples=3, oldest_event_ms=5))
    assert publisher.publish() == 1
    publisher.close()


def test_the_thread_publishes_by_its_own_clock_and_a_follower_follows(tmp_path: Path) -> None:
    store, served = trained_store(), serving_store()
    arrived = threading.Event()
    with Follower(served, str(tmp_path / "log")) as follower:
        follower.start()
        with DeltaPublisher(store, str(tmp_path / "log"), interval=0.1):
            assign(store, {3: 2.0})
            for _ in range(3000):
                if blocks(served) == blocks(store):
                    arrived.set()
                    break
                arrived.wait(0.02)
        assert arrived.is_set()
        assert follower.error is None


def test_the_step_lock_holder_may_cut_and_close_while_dense_weights_are_due(tmp_path: Path) -> None:
    lock = threading.RLock()
    options = {"dense": lambda: {"w": torch.ones(2)}, "step_lock": lock, "interval": 0.1}
    publisher = DeltaPublisher(trained_store(), str(tmp_path / "log"), **options)
    with lock:  # as a session that ends: it saves, and closes the publisher
        publisher.start()
        for _ in range(20):
            publisher.before_cut()
            threading.Event().wait(0.01)
        publisher.close()
    assert DENSE_PART in DeltaLog(str(tmp_path / "log")).parts()


def test_an_unavailable_log_gets_the_newest_rows_when_it_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = trained_store()
    publisher = DeltaPublisher(store, str(tmp_path / "log"))
    assign(store, {1: 1.0, 2: 2.0})
    publisher.publish()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    for value in (3.0, 4.0):
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", full)
            assign(store, {1: value})
            remove(store, [2])
            with pytest.raises(ResourceExhaustedError):
                publisher.publish()
    assert publisher.failures == 2
    publisher.publish()
    assert publisher.last_error is None
    publisher.close()
    assert blocks(followed(tmp_path / "log")) == blocks(store)


def test_the_thread_continues_after_an_error_that_is_none_of_the_log(tmp_path: Path) -> None:
    store = trained_store()
    publisher = DeltaPublisher(store, str(tmp_path / "log"), interval=0.1)
    errors: list[Exception | None] = []
    kept = publisher._round

    def publish(*, everything: bool) -> int:
        errors.append(publisher.last_error)
        return kept(everything=everything)

    failing = FailingOnce(publish, thread="monolith-delta-publisher")
    publisher._round = failing  # type: ignore[method-assign]
    with publisher:
        failing.require_survived()
    assert errors[0] is failing.error
    assert (publisher.failures, publisher.last_error) == (1, None)


def test_a_replaced_publisher_raises_and_writes_nothing_more(tmp_path: Path) -> None:
    old, new = trained_store(), trained_store()
    first = DeltaPublisher(old, str(tmp_path / "log"))
    assign(old, {1: 1.0, 9: 9.0})
    first.publish()
    assign(new, {1: 7.0})
    second = DeltaPublisher(new, str(tmp_path / "log"))
    second.publish()
    assign(old, {1: 2.0})
    for _ in range(2):
        with pytest.raises(AbortedError, match="another writer has the part now"):
            first.publish()
    first.close()
    second.close()
    assert blocks(followed(tmp_path / "log")) == blocks(new)  # begun at a base: row 9 is gone


@pytest.mark.parametrize("published_after", [True, False])
def test_a_rollback_corrects_the_rows_logged_after_the_checkpoint(tmp_path: Path, published_after: bool) -> None:
    """The checkpoint has row 1 changed and not logged; behind it, 1 and 2 change, 3 comes, 4 goes, and all is lost."""
    log = str(tmp_path / "log")

    def run() -> tuple[Embeddings, TrainState, LocalStore]:
        model = Embeddings({"item": Slot(dim=2)})
        store = model.store
        assert isinstance(store, LocalStore)
        return model, TrainState(model=model, global_step=5), store

    _, state, store = run()
    table = store.schema.names[0]
    group = TableGroup.of_store(store)[table]
    publisher = DeltaPublisher(state.stores, log)
    state.witnesses[POSITION_NAME] = publisher
    group.assign([1, 2, 4], [[1.0, 1.0]] * 3)
    publisher.publish()
    served = LocalStore({each.name: replace(each, serving=True) for each in store.native.configs})
    follower = Follower(served, log)
    group.assign([1], [[1.5, 1.5]])
    with Saver(str(tmp_path / "model")) as saver:
        saver.save(state)
    group.assign([1, 2, 3], [[8.0, 8.0]] * 3)
    remove(store, [4])
    if published_after:
        publisher.publish()
        follower.catch_up()

    _, again, restored = run()
    with Saver(str(tmp_path / "model")) as saver:
        saver.restore(again)
    position = LogPosition.of_checkpoint(again.positions, place=publisher.log.place, step=again.global_step)
    assert position is not None
    second = DeltaPublisher(again.stores, log, restored=position)
    second.publish()
    follower.catch_up()
    assert blocks(served) == blocks(restored)
    has_base = any(base.kind == "snapshots" for base in second.log.bases())
    assert has_base is not published_after  # what the checkpoint held was not all logged: followers begin anew
    follower.close()
    second.close()
    publisher.close()


def test_erased_rows_leave_a_follower_also_those_that_only_it_has(tmp_path: Path) -> None:
    store, served = trained_store(), serving_store()
    publisher = DeltaPublisher(store, str(tmp_path / "log"))
    assign(store, {1: 1.0, 2: 2.0, 3: 3.0})
    publisher.publish()
    assign(served, {77: 7.0})
    with Follower(served, str(tmp_path / "log")) as follower:
        follower.catch_up()
        assert TableGroup.of_store(store).erase({"item": [1, 3, 77]}) == 2
        assign(store, {3: 4.0})  # comes back as a new one, in the same increment
        publisher.publish()
        follower.catch_up()
    publisher.close()
    assert blocks(served) == blocks(store) == blocks(followed(tmp_path / "log"))
    assert not TableGroup.of_store(served)["item"].lookup([1, 77]).any()


def test_rows_erased_from_a_checkpoint_leave_followers_when_the_run_resumes(tmp_path: Path) -> None:
    log, ids = str(tmp_path / "log"), torch.tensor([1, 2, 3])
    model = Embeddings({"item": Slot(dim=2)})
    model.assign("item", ids, torch.ones(3, 2))
    state = TrainState(model=model, global_step=5)
    publisher = DeltaPublisher(state.stores, log)
    state.witnesses[POSITION_NAME] = publisher
    publisher.publish()
    with Saver(str(tmp_path / "model")) as saver:
        saver.save(state)
    publisher.close()
    assert isinstance(model.store, LocalStore)
    served = LocalStore({each.name: replace(each, serving=True) for each in model.store.native.configs})
    with Follower(served, log) as follower:
        follower.catch_up()
        assert served.stats().rows == 3
        assert erase_from_checkpoint(str(tmp_path / "model" / "model.ckpt-5"), "item", torch.tensor([2, 9])).rows == 1
        again = TrainState(model=Embeddings({"item": Slot(dim=2)}))
        with Saver(str(tmp_path / "model")) as saver:
            saver.restore(again)
        position = LogPosition.of_checkpoint(again.positions, place=publisher.log.place, step=again.global_step)
        with DeltaPublisher(again.stores, log, restored=position) as second:
            second.publish()
            follower.catch_up()
        assert served.stats().rows == 2
        restored = next(iter(again.stores.values()))
        assert isinstance(restored, LocalStore)
        assert blocks(served) == blocks(restored)


def test_a_position_of_another_checkpoint_or_log_is_not_taken() -> None:
    position = LogPosition(place="/log", step=7, numbers={PART: 3}, marks={})
    saved = {POSITION_NAME: position.to_bytes()}
    assert LogPosition.of_checkpoint(saved, place="/log", step=7) == position
    assert LogPosition.of_checkpoint(saved, place="/log", step=8) is None
    assert LogPosition.of_checkpoint(saved, place="/other", step=7) is None
    assert LogPosition.of_checkpoint({POSITION_NAME: b"{"}, place="/log", step=7) is None


def test_dense_weights_follow_the_rows_that_they_were_trained_with(tmp_path: Path) -> None:
    store, served = trained_store(), serving_store()
    weights = {"bias": torch.tensor([1.0, 2.0])}
    publisher = DeltaPublisher(store, str(tmp_path / "log"), dense=lambda: weights, clock=FakeClock())
    assign(store, {1: 1.0})
    publisher.publish()
    got: list[tuple[dict[str, torch.Tensor], int]] = []
    follower = Follower(
        served, str(tmp_path / "log"), on_dense=lambda found: got.append((dict(found), len(blocks(served))))
    )
    follower.catch_up()
    follower.close()
    publisher.close()
    assert len(got) == 1
    assert torch.equal(got[0][0]["bias"], weights["bias"])
    assert got[0][1] == 1  # the row was there


def test_compaction_alongside_a_live_writer_lets_a_late_follower_begin_there(tmp_path: Path) -> None:
    log = DeltaLog(tmp_path / "log", segment_bytes=500)
    store = trained_store()
    publisher = DeltaPublisher(store, log)
    with Follower(serving_store(), log) as follower:
        for number in range(6):
            assign(store, {number: 1.0})
            publisher.publish()
        follower.catch_up()
        follower.save_base("b1")
    assign(store, {99: 3.0})
    remove(store, [0])
    publisher.publish()
    publisher.close()
    extent = log.extent(PART)
    assert extent is not None
    assert extent.first > 0
    assert blocks(followed(log)) == blocks(store)
    log.remove_base("b1")
    with pytest.raises(GapError, match="increments 0 to"):
        followed(log)


def test_an_increment_that_could_not_be_applied_is_applied_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, served = trained_store(), serving_store()
    publisher = DeltaPublisher(store, str(tmp_path / "log"))
    for value in (1.0, 2.0):
        assign(store, {int(value): value})
        publisher.publish()
    publisher.close()

    def away(*_: object, **__: object) -> None:
        raise UnavailableError("not now")

    with Follower(served, str(tmp_path / "log")) as follower:
        for _ in range(2):
            with monkeypatch.context() as patched:
                patched.setattr(served, "load", away)
                with pytest.raises(UnavailableError):
                    follower.catch_up()
            assert follower.version == {rows_part(): 0}, "of what is here"
        assert follower.lag.increments > 0
        load, versions = served.load, list[int]()

        def looked_at(*values: object, **named: object) -> None:
            versions.append(follower.version[rows_part()])
            load(*values, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(served, "load", looked_at)
        follower.catch_up()
        assert versions == [0, 1], "a version that is told before its rows are here is a promise that is broken"
        assert follower.lag.increments == 0
    assert blocks(served) == blocks(store)


def test_pause_holds_a_follower_and_resume_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_module, "POLL_SECONDS", 0.01)
    store, served = trained_store(), serving_store()
    publisher = DeltaPublisher(store, str(tmp_path / "log"))
    with Follower(served, str(tmp_path / "log")) as follower:

        def wait_for_rows(count: int) -> None:
            end = time.monotonic() + 60.0
            while served.stats().rows < count:
                assert time.monotonic() < end, "it did not follow"
                time.sleep(0.005)

        follower.start()
        assign(store, {1: 1.0})
        publisher.publish()
        wait_for_rows(1)
        follower.pause()
        assign(store, {2: 1.0})
        publisher.publish()
        time.sleep(0.2)
        assert served.stats().rows == 1
        follower.resume()
        wait_for_rows(2)
    publisher.close()


def test_staleness_is_from_the_oldest_event_to_here(tmp_path: Path) -> None:
    clock = FakeClock(1000.0)
    store = trained_store()
    publisher = DeltaPublisher(store, str(tmp_path / "log"))
    publisher.tally.add(Trained(examples=2, oldest_event_ms=990_000, newest_event_ms=999_000))
    publisher.tally.add(Trained(examples=1, oldest_event_ms=995_000, newest_event_ms=996_000))
    publisher.publish()
    publisher.close()
    with Follower(serving_store(), str(tmp_path / "log"), clock=clock) as follower:
        before = follower.staleness
        assert before is None
        follower.catch_up()
        assert follower.staleness == (10.0, 10.0, 1.0)
        clock.advance(3600.0)  # the trainer is dead
        follower.catch_up()
        assert tuple(follower.staleness) == (10.0, 10.0, 3601.0)


def test_staleness_without_events_is_since_the_last_increment_and_not_since_a_new_writer(tmp_path: Path) -> None:
    clock = FakeClock(1000.0)
    log = DeltaLog(tmp_path / "log", clock=clock)
    store = trained_store()
    publisher = DeltaPublisher(store, log, clock=clock)
    assign(store, {1: 1.0})
    publisher.publish()
    publisher.close()
    clock.advance(60.0)
    # A trainer that starts and has trained nothing yet.
    log.open_writer(rows_part(), schema=serving_schema(store.schema)).close()
    with Follower(serving_store(), log, clock=clock) as follower:
        follower.catch_up()
        staleness = follower.staleness
        assert staleness is not None
        assert math.isnan(staleness.p50)
        assert staleness.now == 60.0


def test_a_log_of_another_model_and_a_wrong_interval_are_refused(tmp_path: Path) -> None:
    store = trained_store()
    publisher = DeltaPublisher(store, str(tmp_path / "log"))
    publisher.publish()
    publisher.close()
    with (
        Follower(serving_store(dim=4), str(tmp_path / "log")) as follower,
        pytest.raises(FailedPreconditionError, match="of another model: table 'item', segment 0"),
    ):
        follower.catch_up()
    with pytest.raises(InvalidArgumentError, match=r"interval must be at least 0\.1 seconds, got 0\.01"):
        DeltaPublisher(store, "log", interval=0.01)
