"""What ranks with batches of their own do together: refusals on all of them, pipelines, uneven ranks, saving."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch

from collective.rank_threads import ThreadRank, run_ranks
from monolith.collective import LockStep, ShardedStore
from monolith.errors import FileUnavailableError, InvalidArgumentError, OpError
from monolith.tables import BatchStamp, LocalStore, Segment, TableConfig, Update, snapshot
from monolith.tables.history import Cut, OwnerClock, SnapshotWriteConfig, WrittenRows
from monolith.tables.local.cut import LocalCut
from monolith.tables.row_optimizers import Adagrad, Sgd
from monolith.tables.snapshot.location import open_destination
from monolith.tables.snapshot.manifest import FileEntry, SnapshotManifest, TableEntry
from monolith.tables.store import Store

ONE_TABLE = {"user": TableConfig([Segment(2, optimizer=Sgd())], expire_days=1)}
ALL = list(range(40))


class Worker:
    """One rank that trains one table of two weights with a learning rate of 1."""

    def __init__(self, rank: ThreadRank, tables: dict[str, TableConfig] = ONE_TABLE, **options: object) -> None:
        self.rank = rank
        self.store = ShardedStore(tables, training=rank.training, saving=rank.saving, **options)  # type: ignore[arg-type]
        self.session = self.store.join(rank.rank)
        self.last, self.next = -1, 0

    def plan(self, ids: list[int]):  # type: ignore[no-untyped-def]
        stamp = BatchStamp(worker=self.rank.rank, seq=self.next, position=b"%d" % self.next)
        self.next += 1
        return self.session.plan(torch.tensor(ids, dtype=torch.int64), torch.tensor([0, len(ids)]), stamp=stamp)

    def read(self, ids: list[int]):  # type: ignore[no-untyped-def]
        plan = self.plan(ids)
        return plan, self.session.read(plan, after=self.last, step=0, train=True)

    def push(self, plan, value: float = 1.0, *, rate: float = 1.0, step: int = 0):  # type: ignore[no-untyped-def]
        rule = Update(previous=self.last, step=step, learning_rates=torch.tensor([float(rate)]), times=0)
        pending = self.session.apply([(plan, torch.full((plan.num_values,), value))], rule)
        self.last = plan.stamp.seq
        return pending

    def train(self, ids: list[int], value: float = 1.0) -> None:
        plan, rows = self.read(ids)
        rows.result()
        before = self.last
        try:
            self.push(plan, value).result()
        except OpError:
            self.last = before
            self.session.discard(plan)
            raise

    def rows(self, ids: list[int]) -> list[float]:
        plan = self.store.plan(torch.tensor(ids), torch.tensor([0, len(ids)]), stamp=BatchStamp(worker=0, seq=0))
        values = self.store.read(plan, step=0).result().values.reshape(-1, 2)
        return values[plan.inverse.long()][:, 0].tolist()

    def follow(self) -> str | None:
        return LockStep(self.rank.training).follow(self.store.followers()).result()


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(OpError) as raised:
        call()
    return f"{type(raised.value).__name__}: {raised.value}"


def test_ranks_share_one_step_for_an_id_that_both_have() -> None:
    adagrad = {"user": TableConfig([Segment(2, optimizer=Adagrad(initial_accumulator_value=0.0))])}

    def program(rank: ThreadRank) -> list[float]:
        worker = Worker(rank, adagrad)
        worker.train([1, 2 + rank.rank], 2.0)
        return worker.rows([1, 2, 3])

    # One step of the sum: any size of it gives a step of 1 from an empty accumulator; two steps would go farther.
    assert run_ranks(2, program) == [[-1.0, -1.0, -1.0]] * 2


def test_the_mean_is_over_the_ranks_that_have_a_batch() -> None:
    def program(rank: ThreadRank) -> list[float]:
        worker = Worker(rank, combine="mean")
        worker.train([1, 2] if rank.rank else [1], 3.0)
        found = worker.rows([1, 2])
        if rank.rank == 0:
            worker.train([1], 3.0)
        else:
            assert [worker.follow(), worker.follow()] == ["read rows", "update rows"]
        return [*found, *worker.rows([1])]

    assert run_ranks(2, program) == [[-3.0, -1.5, -6.0]] * 2


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_on_one_rank_is_refused_on_all_and_changes_nothing(bad: float) -> None:
    def program(rank: ThreadRank) -> tuple[str, list[float], list[float]]:
        worker = Worker(rank)
        worker.train(ALL)
        said = refused(lambda: worker.train(ALL, bad if rank.rank == 1 else 1.0))
        kept = worker.rows(ALL)
        worker.train(ALL)
        return said, kept, worker.rows(ALL)

    first, *others = run_ranks(3, program)
    assert all(other == first for other in others)
    said, kept, after = first
    assert said.startswith("InvalidArgumentError: rank 1: table 'user': the gradient of id ")
    assert kept == [-3.0] * len(ALL)
    assert after == [-6.0] * len(ALL)


def test_finite_gradients_whose_sum_over_the_ranks_is_not_are_refused_on_all() -> None:
    def program(rank: ThreadRank) -> tuple[str, list[float]]:
        worker = Worker(rank)
        # Only the owner of one id sees a sum that is too large; the others have nothing to complain about.
        said = refused(lambda: worker.train([5], 3e38))
        return said, worker.rows(ALL)

    (said, rows), other = run_ranks(2, program)
    assert other == (said, rows)
    assert "of id 5 is not finite" in said
    assert rows == [0.0] * len(ALL)


def test_ranks_with_other_tables_are_refused_on_all_with_the_difference() -> None:
    def program(rank: ThreadRank) -> str:
        dim = 3 if rank.rank == 1 else 2
        tables = {"user": TableConfig([Segment(dim)])}
        return refused(lambda: ShardedStore(tables, training=rank.training, saving=rank.saving))

    said = run_ranks(3, program)
    assert set(said) == {said[0]}
    assert "rank 1 has other tables than rank 0: tables.user.segments[0].dim: 2 here, 3 given" in said[0]


def test_ranks_that_combine_differently_are_refused() -> None:
    def program(rank: ThreadRank) -> str:
        return refused(lambda: Worker(rank, combine="sum" if rank.rank else "mean"))

    assert all("options[0]: 'mean' here, 'sum' given" in said for said in run_ranks(2, program))


@pytest.mark.parametrize("option", ["rate", "step"])
def test_ranks_that_learn_by_other_rules_are_refused_on_all(option: str) -> None:
    def program(rank: ThreadRank) -> tuple[str, list[float]]:
        worker = Worker(rank)
        plan, rows = worker.read([1])
        rows.result()
        said = refused(worker.push(plan, **{option: 1 + rank.rank}).result)
        return said, worker.rows([1])

    (said, rows), other = run_ranks(2, program)
    assert said.startswith("InvalidArgumentError: collective: all ranks must make the same call")
    assert other == (said, rows)
    assert rows == [0.0]


def test_a_worker_that_two_ranks_push_for_is_refused_on_all() -> None:
    def program(rank: ThreadRank) -> tuple[str, list[float]]:
        worker = Worker(rank)
        session = worker.store.join(7)
        plan = session.plan(torch.tensor([1]), torch.tensor([0, 1]), stamp=BatchStamp(worker=7, seq=0))
        rule = Update(previous=-1, step=0, learning_rates=torch.ones(1), times=0)
        return refused(session.apply([(plan, torch.ones(2))], rule).result), worker.rows([1])

    (said, rows), other = run_ranks(2, program)
    assert "worker 7" in said
    assert other == (said, rows)
    assert rows == [0.0]


def test_a_push_that_got_lost_on_one_rank_is_refused_on_all() -> None:
    def program(rank: ThreadRank) -> tuple[str, list[float]]:
        worker = Worker(rank)
        worker.train([1])
        worker.last -= rank.rank  # rank 1 names the push before the last one
        plan = worker.plan([1])
        return refused(worker.push(plan).result), worker.rows([1])

    (said, rows), other = run_ranks(2, program)
    assert "worker 1: batch 1 names no push before it" in said
    assert other == (said, rows)
    assert rows == [-2.0]


def test_several_reads_and_pushes_are_in_flight_and_nothing_is_kept_after_them() -> None:
    def program(rank: ThreadRank) -> tuple[list[float], list[float], int]:
        worker = Worker(rank)
        begun = [worker.read([1, 10 + rank.rank]) for _ in range(4)]  # none of them waits for an update
        pushes = [worker.push(plan) for plan, _ in begun[:3]]
        late = worker.read([1])
        seen = [rows.result().values[0].item() for _, rows in [*begun, late]]
        applied = [push.result() for push in pushes]
        assert [each.updated for each in applied] == [3, 3, 3]
        worker.session.discard(begun[3][0])
        worker.session.discard(late[0])
        final = worker.rows([1, 10, 11])
        worker.train([1])
        worker.train([1])
        return seen, final, len(worker.store._owner._kept)

    # Reads contain what was handed over before them: nothing, and then three updates of two ranks.
    assert run_ranks(2, program) == [([0.0, 0.0, 0.0, 0.0, -6.0], [-6.0, -3.0, -3.0], 0)] * 2


def test_one_rank_may_discard_what_the_other_applies() -> None:
    def program(rank: ThreadRank) -> list[float]:
        worker = Worker(rank)
        plan, rows = worker.read([1, 2])
        rows.result()
        if rank.rank == 0:
            worker.session.discard(plan)
            assert worker.follow() == "update rows"
        else:
            worker.push(plan).result()
        return worker.rows([1, 2])

    assert run_ranks(2, program) == [[-1.0, -1.0]] * 2


def test_ranks_whose_batches_were_read_at_different_times_update_together() -> None:
    def program(rank: ThreadRank) -> list[float]:
        worker = Worker(rank)
        first = worker.read([1, 2])
        second = worker.read([2, 3])
        kept, other = (first, second) if rank.rank == 0 else (second, first)
        worker.push(kept[0]).result()
        worker.session.discard(other[0])
        return worker.rows([1, 2, 3])

    assert run_ranks(2, program) == [[-1.0, -2.0, -1.0]] * 2


def test_a_rank_without_ids_keeps_step_and_its_stamp() -> None:
    def program(rank: ThreadRank) -> tuple[list[float], dict[int, int]]:
        worker = Worker(rank)
        worker.train([] if rank.rank else [1])
        return worker.rows([1]), dict(worker.store.stats().applied)

    assert run_ranks(2, program) == [([-1.0], {0: 0, 1: 0})] * 2


# Who has which buckets


def test_the_first_of_many_ranks_has_no_buckets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MONOLITH_SYNC_EMPTY_RANK0_PS_SHARD", raising=False)

    def program(rank: ThreadRank) -> tuple[int, int, list[float], list[tuple[int, int]]]:
        worker = Worker(rank)
        worker.train(ALL)
        with worker.store.cut() as cut:
            files = cut.write(str(tmp_path), SnapshotWriteConfig(snapshot_id=7)).files
        return (
            len(worker.store.owned[rank.rank]),
            worker.store.own_rows.stats().rows,
            worker.rows(ALL),
            [(file.begin, file.end) for file in files],
        )

    found = run_ranks(5, program)
    assert [each[0] for each in found] == [0, 256, 256, 256, 256]
    assert found[0][1] == 0
    assert sum(each[1] for each in found) == len(ALL)
    assert all(each[2] == [-5.0] * len(ALL) for each in found)
    assert all(each[3] == [(0, 256), (256, 512), (512, 768), (768, 1024)] for each in found)


def test_a_variable_gives_the_first_rank_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOLITH_SYNC_EMPTY_RANK0_PS_SHARD", "0")
    assert run_ranks(5, lambda rank: len(Worker(rank).store.owned[0])) == [205] * 5
    monkeypatch.setenv("MONOLITH_SYNC_EMPTY_RANK0_PS_SHARD", "yes")
    with pytest.raises(InvalidArgumentError, match="must be 0 or 1, got 'yes'"):
        run_ranks(5, Worker)


def test_few_ranks_all_have_buckets_by_default() -> None:
    assert run_ranks(4, lambda rank: len(Worker(rank).store.owned[0])) == [256] * 4
    assert run_ranks(2, lambda rank: len(Worker(rank, spare_first_rank=True).store.owned[0])) == [0] * 2


def test_a_run_of_one_rank_needs_no_other_rank() -> None:
    def program(rank: ThreadRank) -> list[float]:
        worker = Worker(rank)
        worker.train([1])
        return worker.rows([1])

    assert run_ranks(1, program) == [[-1.0]]
    with pytest.raises(InvalidArgumentError, match="leaves a run of one rank without an owner"):
        run_ranks(1, lambda rank: Worker(rank, spare_first_rank=True))


# Saving


def restored(rank: ThreadRank, folder: Path) -> tuple[dict[str, int], list[float], int]:
    worker = Worker(rank)
    report = snapshot.restore(worker.store, folder)
    worker.store.resume(applied=report.applied, generation=report.generation)
    return dict(report.rows), worker.rows(ALL), worker.store.join(rank.rank % 2).next_seq


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_files_of_two_ranks_are_restored_by_any_number(size: int, tmp_path: Path) -> None:
    folder, copy = tmp_path / "ranks", LocalStore(ONE_TABLE)

    def write(rank: ThreadRank) -> list[FileEntry]:
        worker = Worker(rank)
        worker.train(ALL)
        with worker.store.cut() as cut:
            written = cut.write(str(folder), SnapshotWriteConfig(snapshot_id=7))
            if rank.rank == 0:
                with closing(open_destination(folder, 0)) as destination:
                    destination.publish(manifest_of(worker.store, cut, written))
        return list(written.files)

    folder.mkdir()
    first, second = run_ranks(2, write)
    assert first == second
    assert sum(file.rows for file in first) == len(ALL)
    assert run_ranks(size, lambda rank: restored(rank, folder)) == [({"user": len(ALL)}, [-2.0] * len(ALL), 1)] * size
    assert dict(snapshot.restore(copy, folder).rows) == {"user": len(ALL)}


def manifest_of(store: Store, cut: Cut, written: WrittenRows) -> SnapshotManifest:
    tables = tuple(
        TableEntry(
            name=table.name,
            schema=table.text,
            digest=table.digest,
            rows=written.rows[table.name],
            newest_time=written.newest_times[table.name],
        )
        for table in store.schema.tables
    )
    return SnapshotManifest(
        snapshot_id=7,
        generation=0,
        epoch=cut.mark.epoch,
        created=0,
        state=True,
        tables=tables,
        files=tuple(written.files),
        applied=tuple(cut.applied),
        extra=None,
    )


def test_files_that_one_rank_cannot_write_are_removed_by_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = LocalCut.write

    def broken(self: LocalCut, folder: str, rules: SnapshotWriteConfig, **options: object) -> WrittenRows:
        if 1000 in self.applied[0].buckets:
            raise FileUnavailableError("disk of the last rank is full")
        return write(self, folder, rules, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(LocalCut, "write", broken)

    def program(rank: ThreadRank) -> tuple[str, list[float]]:
        worker = Worker(rank)
        worker.train(ALL)
        with worker.store.cut() as cut:
            said = refused(lambda: cut.write(str(tmp_path), SnapshotWriteConfig(snapshot_id=7)))
        worker.train(ALL)
        return said, worker.rows([1])

    assert run_ranks(3, program) == [("FileUnavailableError: rank 2: disk of the last rank is full", [-6.0])] * 3
    assert list(tmp_path.iterdir()) == []


def test_a_restore_that_one_rank_cannot_read_changes_nothing_on_any(tmp_path: Path) -> None:
    source = LocalStore(ONE_TABLE)
    session = source.join(0)
    plan = session.plan(torch.tensor(ALL), torch.tensor([0, len(ALL)]), stamp=BatchStamp(worker=0, seq=0))
    rule = Update(previous=-1, step=0, learning_rates=torch.ones(1), times=0)
    session.apply([(plan, torch.ones(plan.num_values))], rule).result()
    source_cut = source.cut()
    snapshot.save_cut(source_cut, source.schema, tmp_path, num_files=4, drop_expired=False)
    source_cut.release()
    (tmp_path / snapshot.read_manifest(tmp_path).files[-1].name).unlink()

    def program(rank: ThreadRank) -> tuple[str, list[float]]:
        worker = Worker(rank)
        worker.train([1])
        return refused(lambda: snapshot.restore(worker.store, tmp_path)).split(":")[0], worker.rows([1, 2])

    assert run_ranks(2, program) == [("NotFoundError", [-2.0, 0.0])] * 2


# A rank that is lost


def test_the_others_raise_when_a_rank_fails_inside_an_exchange() -> None:
    def program(rank: ThreadRank) -> str:
        worker = Worker(rank)
        worker.train([1])
        if rank.rank == 1:
            after = rank.wire.num_calls + 2

            def die(number: int) -> None:
                if number == after:
                    raise RuntimeError("connection closed by peer: it was killed")

            rank.wire.fault = die
        said = refused(lambda: worker.train([1]))
        assert "start the run again" in refused(lambda: worker.rows([1]))
        return said.split(":")[0]

    assert run_ranks(3, program) == ["UnavailableError"] * 3


def test_clocks_of_a_checkpoint_that_differ_between_owners_are_refused_on_all() -> None:
    clocks = (
        OwnerClock(range(512), {0: BatchStamp(worker=0, seq=3)}),
        OwnerClock(range(512, 1024), {0: BatchStamp(worker=0, seq=4)}),
    )

    def program(rank: ThreadRank) -> str:
        return refused(lambda: Worker(rank).store.resume(applied=clocks, generation=0))

    assert all(said.startswith("FailedPreconditionError: resume: ") for said in run_ranks(2, program))
