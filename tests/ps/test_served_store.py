"""Stores over servers: who agrees with whom, what is held for a cut, and what an error leaves behind."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from contracts.one_worker import DAY, ONE_TABLE, Worker, rows_of, rule, stamp
from monolith import _core
from monolith.errors import DeadlineExceededError, FailedPreconditionError, FileUnavailableError, InvalidArgumentError
from monolith.nn import Embeddings, Slot
from monolith.ps import PsCluster, PsServer, PsStore
from monolith.ps.client import connections as _push_hold
from monolith.ps.server import client_sessions as open_things
from monolith.ps.server.push_gates import Clocks, Owner, PushGates
from monolith.tables import Segment, TableConfig
from monolith.tables.history import ALL_BUCKETS, SnapshotWriteConfig, WrittenRows
from monolith.tables.row_optimizers import Adagrad, Sgd
from ps.server_fixtures import running, store_of

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

RULES = SnapshotWriteConfig(snapshot_id=7)


# Agreement


def test_tables_that_differ_are_refused_and_the_difference_is_shown() -> None:
    with running(2) as servers, store_of(servers) as store:
        others = {
            "user": TableConfig([Segment(2, optimizer=Adagrad(learning_rate=0.5))], expire_days=9),
            "item": TableConfig([Segment(1)]),
        }
        with pytest.raises(FailedPreconditionError, match="had other tables") as refused:
            PsStore(others, servers=store.cluster)
        text = str(refused.value)
        for part in (
            "tables.item: nothing here, {",
            "tables.user.expire_days: 1 here, 9 given",
            "tables.user.segments[0].optimizer.type: 'Sgd' here, 'Adagrad' given",
        ):
            assert part in text
        PsStore(others, servers=store.cluster, name="another").close()


def test_a_store_has_more_tables_than_a_greeting_has_room_for() -> None:
    many = {f"table {number}": TableConfig([Segment(2)] * 8) for number in range(60)}
    with running(2) as servers, closing(PsStore(many, servers=[server.address for server in servers])) as store:
        assert store.join(worker=0).next_seq == 0


def test_a_second_client_sees_the_rows_of_the_first() -> None:
    with running(3) as servers, store_of(servers) as first, store_of(servers) as second:
        Worker(first).train([1, 2, 3])
        Worker(second, 1).train([3])
        assert rows_of(second, [1, 2, 3]) == rows_of(first, [1, 2, 3]) == [[-1.0, -1.0]] * 2 + [[-2.0, -2.0]]
        with first.cut() as cut, second.cluster.held():
            assert cut.mark.life == second.moments()[0].life.life


def test_a_client_that_joins_judges_times_by_what_the_servers_have_seen() -> None:
    with running(2) as servers, store_of(servers) as first, store_of(servers) as second:
        Worker(first).train([1], time=1000)
        worker = Worker(second, 1)
        worker.push(worker.plan([2], 0), time=1000 + 2 * DAY)  # before any read
        assert second.stats().times_ahead == 1


def test_a_store_without_references_ends_immediately() -> None:
    with running(1) as servers, PsCluster([server.address for server in servers]) as cluster:
        store = PsStore(ONE_TABLE, servers=cluster)
        ended = weakref.ref(store)
        assert store.owners.owned == store.owned
        gc.disable()  # with it go connections and a thread, which must not wait for the collector
        try:
            del store
            assert ended() is None
        finally:
            gc.enable()


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


def test_rows_that_are_rounded_on_the_wire_are_reported_as_inexact() -> None:
    with running(1) as servers:
        store = PsStore(ONE_TABLE, servers=[servers[0].address], wire="fp16")
        assert not store.traits.exact
        Worker(store).train([1], 1.0 + 2.0**-12)
        assert rows_of(store, [1]) == [[-1.0, -1.0]]
        store.close()


def test_a_model_takes_servers_as_its_store() -> None:
    with running(2) as servers:
        make = partial(PsStore, servers=[each.address for each in servers])
        module = Embeddings({"user": Slot(dim=4)}, store=make)
        assert module.store.traits.remote
        module.store.close()


# Holding


def push_to(server: PsServer, seq: int) -> None:
    """An empty update of worker 9, which reaches no other server."""
    worker = server._service.stores.find("rows").store.join(9)
    plan = worker.plan(torch.empty(0, dtype=torch.int64), torch.tensor([0, 0]), stamp=stamp(seq, 9))
    worker.apply([(plan, torch.empty(0))], rule(seq - 1)).result()


def test_a_worker_between_two_servers_is_waited_for_and_the_cut_is_even(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(2) as servers, store_of(servers) as store:
        Worker(store).train([1, 2, 3, 4])
        push_to(servers[0], 0)
        level = PushGates.catch_up

        def let_it_come(self: PushGates, client: int, limits: Mapping[str, Mapping[int, int]], wait: float) -> Clocks:
            assert limits == {"rows/rows": {0: 0, 9: 0}}
            push_to(servers[1], 0)
            return level(self, client, limits, wait)

        monkeypatch.setattr(PushGates, "catch_up", let_it_come)
        with store.cut() as cut:
            assert [clock.stamps[9].seq for clock in cut.applied] == [0, 0]


def test_a_worker_that_is_slow_between_two_servers_is_awaited_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_push_hold, "_LEVEL_SECONDS", 0.01)
    with running(2) as servers, store_of(servers) as store:
        push_to(servers[0], 0)
        releases = 0

        def let_it_come_late(self: PushGates, client: int) -> bool:
            nonlocal releases
            releases += self is servers[1]._service.gates
            was_held = release(self, client)
            if releases == 3:
                push_to(servers[1], 0)
            return was_held

        release = PushGates.release
        monkeypatch.setattr(PushGates, "release", let_it_come_late)
        with store.cut() as cut:
            assert [clock.stamps[9].seq for clock in cut.applied] == [0, 0]
        assert releases == 4, "three holds in which it did not come, and the one of the cut"


def test_a_worker_that_died_between_two_servers_is_reported_once_and_awaited_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_push_hold, "_LEVEL_SECONDS", 0.01)
    waits = []
    level = PushGates.catch_up

    def noted(self: PushGates, client: int, limits: Mapping[str, Mapping[int, int]], wait: float) -> Clocks:
        waits.append(wait)
        return level(self, client, limits, wait)

    monkeypatch.setattr(PushGates, "catch_up", noted)
    with running(2) as servers, store_of(servers) as store:
        push_to(servers[0], 0)
        for _ in range(2):
            with store.cut() as cut:
                assert [9 in clock.stamps for clock in cut.applied] == [True, False]
        assert caplog.text.count("has not reached all servers") == 1
        assert waits == [pytest.approx(0.01)] * 10 + [0.0]
        push_to(servers[0], 1)
        with store.cut() as cut:
            assert [9 in clock.stamps for clock in cut.applied] == [True, False]
        assert caplog.text.count("has not reached all servers") == 2, "another batch that was lost"
        for seq in (0, 1):
            push_to(servers[1], seq)
        with store.cut() as cut:
            assert [clock.stamps[9].seq for clock in cut.applied] == [1, 1], "it went on"
        assert not store.cluster._push_hold._awaited_in_vain, "after a restore, its numbers may come again"


def test_pushes_up_to_the_limit_pass_a_held_gate() -> None:
    gates, gate, clock = PushGates(), _core.PushGate(), {7: 3}
    gates.add("dense", Owner(gate, lambda: clock))
    assert gates.hold(1, 60.0) == {"dense": {7: 3}}
    assert not gate.enter(7, 4, 3)
    assert gate.enter(7, 3, 3), "what was applied before always passes"
    gate.leave()
    assert gates.catch_up(1, {"dense": {7: 4}}, 0.0) == {"dense": {7: 3}}, "nobody came"
    assert gate.enter(7, 4, 3)
    gate.leave()
    assert not gate.enter(7, 5, 4)
    assert not gates.release(2), "another client"
    assert not gate.enter(7, 5, 4)
    assert gates.release(1)
    assert gate.enter(7, 5, 4)
    gate.leave()


def test_a_push_that_does_not_end_makes_the_hold_fail() -> None:
    gates, gate = PushGates(), _core.PushGate()
    gates.add("dense", Owner(gate, dict))
    assert gate.enter(7, 0, -1)
    with pytest.raises(DeadlineExceededError, match="a push did not end"):
        gates.hold(1, 0.05)
    assert gate.enter(8, 0, -1), "the gate is open again"


def test_one_client_holds_at_a_time() -> None:
    gates = PushGates()
    gates.hold(1, 60.0)
    with pytest.raises(DeadlineExceededError, match="another client held"):
        gates.hold(2, 0.05)
    gates.release(1)
    gates.hold(2, 60.0)


def test_a_hold_that_one_server_refuses_holds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(client: int, seconds: float) -> Clocks:
        raise DeadlineExceededError(f"hold: a push of client {client} did not end within {seconds} s")

    with running(2) as servers, store_of(servers) as store:
        worker = Worker(store)
        worker.train([1])
        with monkeypatch.context() as patched:
            patched.setattr(servers[1]._service.gates, "hold", refuse)
            with pytest.raises(DeadlineExceededError, match="did not end"), store.cluster.held(60.0):
                pass
        plan = worker.plan([1], 1)
        assert worker.session.apply([(plan, torch.ones(2))], rule(0)).result(30).updated == 1


def test_pushes_wait_while_they_are_held_and_pass_afterwards() -> None:
    with running(2) as servers, store_of(servers) as store, store_of(servers) as other:
        worker = Worker(store)
        worker.train([1])
        plan = worker.plan([1], 1)
        with store.cluster.held(60.0), store.cluster.held():  # once more inside is the same hold
            pending = worker.session.apply([(plan, torch.ones(2))], rule(0))
            assert not pending._push.wait_for(0.2)  # type: ignore[attr-defined]  # the call on its way
            assert rows_of(other, [1]) == [[-1.0, -1.0]]
        assert pending.result(60).updated == 1


def test_a_hold_ends_by_itself() -> None:
    with running(2) as servers, store_of(servers) as store:
        worker = Worker(store)
        with store.cluster.held(seconds=0.2):
            worker.train([1])  # waits until the hold is over
        assert rows_of(store, [1]) == [[-1.0, -1.0]]


# Cuts and files


def test_where_one_server_cannot_write_the_files_of_the_others_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = open_things.OpenCut.write
    others_have_written = threading.Barrier(3)

    def failing(self: open_things.OpenCut, folder: str, rules: SnapshotWriteConfig) -> WrittenRows:
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

    def slow(self: open_things.OpenCut, folder: str, rules: SnapshotWriteConfig) -> WrittenRows:
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


def test_a_cut_without_references_is_released() -> None:
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
        tables = {
            "item": TableConfig([Segment(2, optimizer=Sgd())]),
            "user": TableConfig([Segment(4096, optimizer=Sgd())]),
        }
        source = PsStore(tables, servers=cluster, name="source")
        target = PsStore(tables, servers=cluster, name="target")
        candidates = np.arange(200_000)
        ids = torch.from_numpy(candidates[_core.bucket_of(candidates) == 700][:100])
        splits = torch.tensor([0, 10, len(ids)])
        session = source.join(0)
        plan = session.plan(ids, splits, stamp=stamp(0))
        session.apply([(plan, torch.arange(float(plan.num_values)))], rule(-1, segments=2)).result()
        with source.cut() as cut:
            blocks = list(cut.blocks(ALL_BUCKETS))
        small, large = (len(block.data) for block in blocks)
        assert small < 1 << 20 < large, "the first piece of the large block shares a message with the small one"
        target.load(blocks, buckets=ALL_BUCKETS, replace=True)
        theirs = target.plan(ids, splits, stamp=stamp(1))
        assert torch.equal(target.read(theirs, step=0).result().values, -torch.arange(float(plan.num_values)))
        for block in blocks:
            target.assign(block, add=True)
        assert torch.equal(target.read(theirs, step=0).result().values, -2 * torch.arange(float(plan.num_values)))
        for store in (source, target):
            store.close()


# Readers


def test_a_reader_that_only_some_servers_have_is_not_resumed() -> None:
    with running(2) as servers, store_of(servers) as store:
        reader = store.open_reader("log")
        request = reader._message()
        store.cluster.ask_one(1, "CloseReader", request)
        with pytest.raises(FailedPreconditionError, match="it is missing on servers 1"):
            store.open_reader("log")
        with store.cut() as cut:
            assert store.open_reader("log", at=cut.mark).mark == cut.mark


def test_a_reader_that_one_server_refuses_is_kept_by_none() -> None:
    with running(2) as servers, store_of(servers) as store:
        with store.cut() as cut:
            mark = cut.mark
        ahead = mark._replace(epoch=mark.epoch + 1)
        servers[0]._service.stores.find("rows").history.mark_at(ahead.epoch)  # one server is ahead of the other
        with pytest.raises(FailedPreconditionError):
            store.open_reader("log", at=ahead)
        assert [each._service.stores.find("rows").history.reader_epoch("log") for each in servers] == [None, None]


def test_a_gate_reports_in_the_thread_of_its_caller_that_pushes_may_be_retried() -> None:
    class Server:
        def __init__(self) -> None:
            self.woken_in: list[int] = []
            self.gate = _core.PushGate(on_open=self.wake)

        def wake(self) -> None:
            self.woken_in.append(threading.get_ident())

    server = Server()
    assert server.gate.hold(60.0)
    assert not server.gate.enter(7, 1, 0)
    assert server.woken_in == []
    server.gate.allow({7: 1})
    server.gate.release()
    assert server.woken_in == [threading.get_ident()] * 2
    gone = weakref.ref(server)
    del server
    gc.collect()
    assert gone() is None


def test_a_server_is_woken_when_pushes_to_its_dense_weights_may_be_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[PsServer] = []

    def wake(server: PsServer) -> None:
        woken.append(server)

    monkeypatch.setattr(PsServer, "_wake", wake)
    with PsServer(0, num_ps=1) as server:
        server.dense.gate.release()
        assert woken == [server]
