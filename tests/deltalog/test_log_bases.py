"""Followers begin at bases: checkpoints that a run saved anyway, and what others compacted; nothing older is needed."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from monolith.checkpoint import Saver, TrainState
from monolith.checkpoint.tensor_file import tensors_to_bytes
from monolith.deltalog import Base, DeltaLog, GapError, rows_part
from monolith.deltalog.follow.base_state import stores_of_log
from monolith.deltalog.publish import Trained
from monolith.deltalog.publish.log_position import POSITION_NAME, add_checkpoint_base
from monolith.errors import InvalidArgumentError, NotFoundError
from monolith.nn import Embeddings, Slot
from monolith.online import DeltaPublisher, Follower
from monolith.tables import LocalStore, TableGroup
from monolith.testing import FakeClock

DAY = 86_400


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = Embeddings({"item": Slot(dim=2)})
        self.bias = torch.nn.Parameter(torch.tensor([1.0]))


class Run:
    """A run that trains by hand, saves, and publishes to a log of small segments."""

    def __init__(self, folder: Path, *, clock: FakeClock | None = None, **options: object) -> None:
        self.model = Model()
        store = self.model.embeddings.store
        assert isinstance(store, LocalStore)
        self.store = store
        self.state = TrainState(model=self.model, global_step=0)
        self.log = DeltaLog(folder / "log", segment_bytes=600, clock=clock)
        self.publisher = DeltaPublisher(
            self.state.stores, self.log, dense=lambda: {"bias": self.model.bias.data}, clock=clock, **options
        )
        self.state.witnesses[POSITION_NAME] = self.publisher
        self.part = rows_part("embeddings")

    def train(self, rows: dict[int, float], *, event_ms: int = 0) -> None:
        table = TableGroup.of_store(self.store)[self.store.schema.names[0]]
        table.assign(list(rows), [[value, value] for value in rows.values()])
        self.state.global_step += 1
        self.model.bias.data += 1.0
        trained = Trained(examples=1, oldest_event_ms=event_ms, newest_event_ms=event_ms, step=self.state.global_step)
        self.publisher.tally.add(trained)
        self.publisher.publish()

    def serving_store(self) -> LocalStore:
        return LocalStore({each.name: replace(each, serving=True) for each in self.store.native.configs})

    @property
    def first(self) -> int:
        extent = self.log.extent(self.part)
        assert extent is not None
        return extent.first


def rows(store: LocalStore) -> list[tuple[object, ...]]:
    with store.cut() as cut:
        return sorted(
            (int(key), int(time), bytes(row))
            for block in cut.blocks(range(1024), state=False)
            if block.kind.name == "SERVING"
            for key, time, row in zip(block.keys, block.times, block.payload, strict=True)
        )


def followed(run: Run) -> tuple[LocalStore, list[float], dict[str, int]]:
    """What a follower that begins now comes to, and the dense weights that it was given."""
    served, weights = run.serving_store(), list[float]()
    with Follower(
        {"embeddings": served}, str(run.log.place), on_dense=lambda found: weights.append(float(found["bias"]))
    ) as follower:
        follower.catch_up()
        return served, weights, follower.version


def test_a_saved_checkpoint_becomes_a_base_and_a_late_follower_needs_nothing_before_it(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with Saver(str(tmp_path / "model")) as saver:
        for number in range(8):
            run.train({number: 1.0 + number, 100: float(number)})
        saved = saver.save(run.state, background=False)
        assert run.log.bases() == []
        run.train({3: 9.0})
    (base,) = run.log.bases()
    assert (base.kind, base.path, base.step) == ("checkpoint", saved.path, 8)
    run.log.trim()
    assert run.first > 4
    served, weights, version = followed(run)
    assert rows(served) == rows(run.store)
    assert version == run.publisher.numbers
    assert weights[0] == 9.0  # those of the checkpoint
    run.log.remove_base(base.name)
    assert Path(saved.path + ".manifest").exists() or any(tmp_path.glob("model/model.ckpt-8*"))  # it is the saver's
    with pytest.raises(GapError, match="increments 0 to"):
        followed(run)
    run.publisher.close()


def test_a_deleted_checkpoint_is_skipped_and_its_base_then_discarded(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with Saver(str(tmp_path / "model"), max_to_keep=1) as saver:
        run.train({1: 1.0})
        saver.save(run.state, background=False)
        run.train({2: 2.0})
        saver.save(run.state, background=False)  # the first goes
        assert [base.step for base in run.log.bases()] == [1]
        assert rows(followed(run)[0]) == rows(run.store)  # its base is passed over, the log still has it all
        run.train({3: 3.0})
        assert [base.step for base in run.log.bases()] == [2]
    assert rows(followed(run)[0]) == rows(run.store)
    run.publisher.close()


def test_a_publisher_that_keeps_one_base_lets_the_log_stay_short(tmp_path: Path) -> None:
    run = Run(tmp_path, keep_bases=1)
    with Saver(str(tmp_path / "model")) as saver:
        for _ in range(3):
            for number in range(4):
                run.train({number: float(number)})
            saver.save(run.state, background=False)
        run.train({0: 7.0})
    assert [base.step for base in run.log.bases()] == [12]
    assert run.first > 8
    assert rows(followed(run)[0]) == rows(run.store)
    run.publisher.close()
    with pytest.raises(InvalidArgumentError, match="keep_bases must be >= 1 or None, got 0"):
        DeltaPublisher(run.store, "log", keep_bases=0)


def test_a_checkpoint_of_another_log_or_without_a_position_is_no_base(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.train({1: 1.0})
    with Saver(str(tmp_path / "model")) as saver:
        saved = saver.save(run.state, background=False)
    with DeltaLog(tmp_path / "other") as other:
        assert add_checkpoint_base(other, saved.path) is None
        assert other.bases() == []
    run.publisher.close()


def test_a_follower_that_is_a_day_late_catches_up(tmp_path: Path) -> None:
    """Of the day that it slept nothing is left in the log but what is behind the last base."""
    clock = FakeClock(1_800_000_000.0)
    run = Run(tmp_path, clock=clock)
    served = run.serving_store()
    with Follower({"embeddings": served}, run.log, clock=clock) as late:
        run.train({1: 1.0, 2: 2.0}, event_ms=int(1000 * clock.now()))
        late.catch_up()
        slept_at = late.version[run.part]
        for hour in range(24):
            clock.advance(DAY / 24)
            run.train({hour: float(hour)}, event_ms=int(1000 * clock.now()))
            if hour % 8 == 7:
                with Follower({"embeddings": run.serving_store()}, run.log) as compactor:
                    compactor.catch_up()
                    compactor.save_base(f"hour-{hour}")
        assert run.first > slept_at + 1
        assert late.lag.increments > 20
        assert late.lag.seconds >= DAY
        assert late.lag.bytes > 0
        late.catch_up()
        assert rows(served) == rows(run.store)
        assert late.lag == (0, 0, 0.0)
        assert late.version == run.publisher.numbers
        assert late.staleness is not None
    run.publisher.close()


def test_files_of_a_removed_base_go_with_it_and_those_of_others_stay(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.train({1: 1.0})
    mine = run.log.save_base({"embeddings": run.store}, name="mine", numbers={run.part: 1}, dense=b"")
    other = tmp_path / "other"
    other.mkdir()
    run.log.add_base(Base(name="other", kind="snapshots", path=str(other), numbers={run.part: 1}))
    assert Path(mine.path, "embeddings").is_dir()
    assert mine.dense is not None
    for name in ("mine", "other", "never was"):
        run.log.remove_base(name)
    assert not Path(mine.path).exists()
    assert other.is_dir()
    assert run.log.bases() == []
    run.publisher.close()


def test_tables_of_a_log_are_found_while_compaction_replaces_the_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    run.train({1: 1.0})
    run.log.save_base({"embeddings": run.store}, name="first", numbers={run.part: 1})
    bases = DeltaLog.bases

    def then_compacted(log: DeltaLog) -> list[Base]:
        monkeypatch.setattr(DeltaLog, "bases", bases)
        found = bases(log)
        log.save_base({"embeddings": run.store}, name="second", numbers={run.part: 2})
        log.trim()
        return found

    run.train({2: 2.0})
    monkeypatch.setattr(DeltaLog, "bases", then_compacted)
    assert list(stores_of_log(run.log)) == ["embeddings"]
    assert [base.name for base in run.log.bases()] == ["second"]
    shutil.rmtree(run.log.bases()[0].path)
    with pytest.raises(NotFoundError, match="no snapshot here"):
        stores_of_log(run.log)
    run.publisher.close()


def test_the_base_that_contains_most_is_loaded_regardless_of_the_clock(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.train({1: 1.0})
    old = run.log.save_base({"embeddings": run.store}, name="old", numbers={run.part: 1})
    for number in range(6):
        run.train({number: 2.0})
    new = run.log.save_base({"embeddings": run.store}, name="new", numbers={run.part: 7})
    run.log.add_base(replace(new, created_ms=old.created_ms - 1000))  # the clock was put back
    run.log.trim()
    assert [base.name for base in run.log.bases()] == ["new"]
    assert rows(followed(run)[0]) == rows(run.store)
    run.publisher.close()


class WeightsAndRows:
    """A follower that looks at the row of id 1 whenever dense weights come; both count the steps."""

    def __init__(self, run: Run) -> None:
        served = run.serving_store()
        self._table = TableGroup.of_store(served)[served.schema.names[0]]
        self.seen: list[tuple[float, float]] = []
        self.follower = Follower({"embeddings": served}, run.log, on_dense=self._note)

    def _note(self, found: Mapping[str, torch.Tensor]) -> None:
        self.seen.append((float(found["bias"]), float(self._table.lookup([1])[0, 0])))


@pytest.mark.parametrize("is_dense_there", [True, False])
def test_weights_of_a_base_whose_rows_have_gone_wait_for_those_of_the_log(
    tmp_path: Path, *, is_dense_there: bool
) -> None:
    run = Run(tmp_path, dense_interval=1e-6)
    for step in range(2, 6):
        run.train({1: float(step)})
    weights = tensors_to_bytes({"bias": run.model.bias.data})
    base = run.log.save_base({"embeddings": run.store}, name="base", numbers=run.publisher.numbers, dense=weights)
    assert base.dense is not None
    shutil.rmtree(Path(base.path) / base.stores["embeddings"])
    if not is_dense_there:
        (Path(base.path) / base.dense).unlink()
    run.train({1: 6.0})
    late = WeightsAndRows(run)
    with late.follower:
        late.follower.catch_up()
    assert late.seen[-1] == (6.0, 6.0)
    assert all(row >= weight for weight, row in late.seen), late.seen
    run.publisher.close()
