"""Stores over servers: who agrees with whom, what is held for a cut, and what an error leaves behind."""

from __future__ import annotations

import logging
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from contracts.one_worker import ONE_TABLE, Worker, rows_of, rule, stamp
from monolith import _core
from monolith.errors import FailedPreconditionError, FileUnavailableError, InvalidArgumentError
from monolith.nn import Embeddings, Slot
from monolith.ps import PsCluster, PsStore, open_things
from monolith.tables import Segment, TableConfig
from monolith.tables.history import ALL_BUCKETS, WriteRules, WrittenRows
from monolith.tables.row_optimizers import Adagrad, Sgd
from ps.server_fixtures import running, store_of

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

RULES = WriteRules(snapshot_id=7)


# Agreement


def test_tables_that_differ_are_refused_and_the_difference_is_shown() -> None:
    with running(2) as servers, store_of(servers) as store:
        others = {
            "user": TableConfig([Segment(2, optimizer=Adagrad(learning_rate=0.5))], expire_days=9),
            "item": TableConfig([Segment(1)]),
        }
        with pytest.raises(FailedPreconditionError, match="configured differently") as refused:
            PsStore(others, servers=store.cluster)
        text = str(refused.value)
        for part in (
            "tables.item is only here",
            "tables.user.expire_days is 9 here, 1 on the servers",
            'tables.user.segments[0].optimizer.type is "Adagrad" here, "Sgd" on the servers',
        ):
            assert part in text
        PsStore(others, servers=store.cluster, name="another").close()


def test_a_second_client_sees_the_rows_of_the_first() -> None:
    with running(3) as servers, store_of(servers) as first, store_of(servers) as second:
        Worker(first).train([1, 2, 3])
        Worker(second, 1).train([3])
        assert rows_of(second, [1, 2, 3]) == rows_of(first, [1, 2, 3]) == [[-1.0, -1.0]] * 2 + [[-2.0, -2.0]]
        with first.cut() as cut, second.cluster.held():
            assert cut.mark.life == second.moments()[0].life.life


def test_caps_are_shared_out() -> None:
    with running(4) as servers, PsCluster([each.address for each in servers]) as cluster:
        capped = {"user": TableConfig([Segment(2, optimizer=Sgd())], max_rows=40)}
        store = PsStore(capped, servers=cluster)
        Worker(store).train(list(range(400)))
        assert store.stats().rows <= 40
        store.close()


def test_a_wire_that_does_not_exist_is_refused() -> None:
    with running(1) as servers, pytest.raises(InvalidArgumentError, match="wire must be 'fp32' or 'fp16'"):
        PsStore(ONE_TABLE, servers=[servers[0].address], wire="fp8")  # type: ignore[arg-type]  # that is the point


def test_rows_that_are_rounded_on_the_wire_say_so() -> None:
    with running(1) as servers:
        store = PsStore(ONE_TABLE, servers=[servers[0].address], wire="fp16")
        assert not store.traits.exact
        Worker(store).train([1], 1.0 + 2.0**-12)
        assert rows_of(store, [1]) == [[-1.0, -1.0]]
        store.close()


def test_a_model_takes_servers_as_its_store() -> None:
    with running(2) as servers:
        make = partial(PsStore, servers=[each.address for each in servers])
        module = Embeddings([Slot("user", dim=4)], store=make)
        assert module.store.traits.remote
        module.store.close()


# Holding


def test_a_worker_between_two_servers_is_waited_for_and_the_cut_is_even() -> None:
    with running(2) as servers, store_of(servers) as store:
        Worker(store).train([1, 2, 3, 4])
        halves = [half_of(store, index) for index in range(2)]
        joined = [half.join(9, 60.0)[0][0] for half in halves]
        push(store, halves[0], joined[0], 0)
        cuts: list[list[int]] = []

        def cut() -> None:
            with store.cut() as made:
                cuts.append([clock.stamps[9].seq for clock in made.applied if 9 in clock.stamps])

        cutting = threading.Thread(target=cut)
        cutting.start()
        while not servers[1]._service.gates._holder:
            pass
        push(store, halves[1], joined[1], 0)
        cutting.join(120)
        assert cuts == [[0, 0]]
        for half in halves:
            half.close()


def test_a_worker_that_died_between_two_servers_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    with running(2) as servers, store_of(servers) as store:
        half = half_of(store, 0)
        push(store, half, half.join(9, 60.0)[0][0], 0)
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                with store.cut() as cut:
                    assert [9 in clock.stamps for clock in cut.applied] == [True, False]
        assert caplog.text.count("has not reached all servers") == 1
        half.close()


def test_pushes_wait_while_they_are_held_and_pass_afterwards() -> None:
    with running(2) as servers, store_of(servers) as store:
        worker = Worker(store)
        worker.train([1])
        plan = worker.plan([1], 1)
        with store.cluster.held(), store.cluster.held():  # once more inside is the same hold
            pending = worker.joined.apply([(plan, torch.ones(2))], rule(0))
            assert not pending._push.wait_for(0.2)  # type: ignore[attr-defined]  # the call on its way
            assert rows_of(store, [1]) == [[-1.0, -1.0]]
        assert pending.result(60).updated == 1


def test_a_hold_ends_by_itself() -> None:
    with running(2) as servers, store_of(servers) as store:
        worker = Worker(store)
        with store.cluster.held(seconds=0.2):
            worker.train([1])  # waits until the hold is over
        assert rows_of(store, [1]) == [[-1.0, -1.0]]


def half_of(store: PsStore, index: int) -> _core.RowClient:
    """A worker's end that knows one server only: its pushes reach no other."""
    owned = store.owned[index]
    return _core.RowClient(
        [store.cluster.frame_address(index)],
        [store.frames_words[index]],
        [(owned.start, owned.stop)],
        store.native.core,
    )


def update(previous: int):
    from contracts.one_worker import rule  # noqa: PLC0415 - beside its use

    return rule(previous)


def push(store: PsStore, half: _core.RowClient, incarnation: int, seq: int) -> None:
    """An empty update of worker 9."""
    plan = store.native.core.plan(np.empty(0, np.int64), np.array([0, 0]), True)
    sent = half.new_push(
        plan,
        _core.Push(worker=9, incarnation=0, first_seq=seq, seq=seq, previous=seq - 1, position=b"", event_time_ms=0),
        incarnations=[incarnation],
        gradients=np.empty(0, np.float32),
        rates=np.ones(1, np.float32),
        times=np.zeros(1, np.int64),
        latest=None,
        step=0,
        scale=1.0,
        known_finite=True,
        ticket=0,
        dropped=[],
    )
    sent.begin(60.0)
    sent.finish(60.0)


# Cuts and files


def test_where_one_server_cannot_write_the_files_of_the_others_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = open_things.OpenCut.write
    others_have_written = threading.Barrier(3)

    def failing(self: open_things.OpenCut, folder: str, rules: WriteRules) -> WrittenRows:
        if self.cut._owned.start == 0:
            others_have_written.wait(60)
            raise FileUnavailableError("the disk is full")
        written = write(self, folder, rules)
        others_have_written.wait(60)
        return written

    with running(3) as servers, store_of(servers) as store:
        Worker(store).train(list(range(50)))
        monkeypatch.setattr(open_things.OpenCut, "write", failing)
        with store.cut() as cut, pytest.raises(FileUnavailableError, match=r"parameter server 0 at .*disk is full"):
            cut.write(str(tmp_path), RULES)
        assert list(tmp_path.iterdir()) == []
        monkeypatch.undo()
        with store.cut() as cut:
            assert len(cut.write(str(tmp_path), RULES).files) == 3


def test_a_write_that_is_cancelled_ends_on_all_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transfer = _core.Transfer()
    write = open_things.OpenCut.write

    def slow(self: open_things.OpenCut, folder: str, rules: WriteRules) -> WrittenRows:
        transfer.cancel()
        while not self._transfer.cancelled:
            pass  # until the word has come
        return write(self, folder, rules)

    with running(2) as servers, store_of(servers) as store:
        Worker(store).train(list(range(50)))
        monkeypatch.setattr(open_things.OpenCut, "write", slow)
        with store.cut() as cut, pytest.raises(Exception, match="cancelled"):
            cut.write(str(tmp_path), RULES, transfer=transfer)
        assert list(tmp_path.iterdir()) == []


def test_a_cut_that_is_forgotten_is_released() -> None:
    with running(2) as servers, store_of(servers) as store:
        store.cut()  # nobody keeps it
        store.cut().release()


def test_a_client_that_leaves_releases_its_cut() -> None:
    with running(2) as servers, store_of(servers) as stays:
        with store_of(servers) as leaves:
            cut = leaves.cut()
            with pytest.raises(FailedPreconditionError, match="a cut is open already"):
                stays.cut()
        while True:
            try:
                stays.cut().release()
            except FailedPreconditionError:
                continue  # the servers have not heard of it yet
            break
        with pytest.raises(FailedPreconditionError):
            cut.blocks(ALL_BUCKETS)


def test_a_large_block_crosses_in_pieces() -> None:
    with running(2) as servers, PsCluster([each.address for each in servers]) as cluster:
        wide = {"user": TableConfig([Segment(1 << 16, optimizer=Sgd())])}
        source = PsStore(wide, servers=cluster, name="source")
        target = PsStore(wide, servers=cluster, name="target")
        joined = source.join(0)
        ids = torch.arange(9)
        plan = joined.plan(ids, torch.tensor([0, 9]), stamp=stamp(0))
        joined.apply([(plan, torch.arange(float(plan.num_values)))], rule(-1)).result()
        with source.cut() as cut:
            target.load(cut.blocks(ALL_BUCKETS), buckets=ALL_BUCKETS, replace=True)
        theirs = target.plan(ids, torch.tensor([0, 9]), stamp=stamp(1))
        assert torch.equal(target.read(theirs, step=0).result().values, -torch.arange(float(plan.num_values)))
        for store in (source, target):
            store.close()


# Readers


def test_a_reader_that_only_some_servers_know_is_not_gone_on_with() -> None:
    with running(2) as servers, store_of(servers) as store:
        reader = store.open_reader("log")
        request = reader._message()
        store.cluster.ask_one(1, "CloseReader", request)
        with pytest.raises(FailedPreconditionError, match="servers 1 do not know it"):
            store.open_reader("log")
        with store.cut() as cut:
            assert store.open_reader("log", at=cut.mark).mark == cut.mark


def test_a_reader_that_one_server_refuses_is_kept_by_none() -> None:
    with running(2) as servers, store_of(servers) as store:
        with store.cut() as cut:
            mark = cut.mark
        ahead = mark._replace(epoch=mark.epoch + 1)
        servers[0]._service._rows("rows").history.mark_at(ahead.epoch)  # one server is ahead of the other
        with pytest.raises(FailedPreconditionError):
            store.open_reader("log", at=ahead)
        assert [each._service._rows("rows").history.reader_epoch("log") for each in servers] == [None, None]
