"""A server that was lost comes back with what its record and the newest checkpoint have, at one exact moment."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.one_worker import DAY, ONE_TABLE, Worker, rows_of
from monolith.deltalog.transports.file_transport import FileAppender
from monolith.errors import FailedPreconditionError, InvalidArgumentError, ResourceExhaustedError, UnavailableError
from monolith.nn.table_defaults import TableDefaults, use_table_defaults
from monolith.ps import DenseClient, PsCluster, PsServer, PsStore
from monolith.ps.client import connections
from monolith.ps.recovery.config import RecoveryConfig
from monolith.ps.recovery.manager import RecoveryManager
from monolith.tables import Segment, TableConfig
from monolith.tables.batch import BatchStamp, Update
from monolith.tables.formats.row_block import BlockKind
from monolith.tables.history import ALL_BUCKETS
from monolith.tables.row_optimizers import Adagrad
from monolith.tables.store import Store
from ps.counting import Counter, Pusher
from ps.dense_models import OPTIMIZERS, Weights
from ps.recorded import Recorded, recorded

IDS = range(40)
TWO_TABLES = {
    "item": TableConfig([Segment(3, optimizer=Adagrad()), Segment(1)], expire_days=1),
    "user": TableConfig([Segment(2, optimizer=Adagrad())], expire_days=2),
}


def content(store: Store) -> dict[tuple[int, int], tuple[int, bytes]]:
    """Every row with its time and state."""
    with store.cut() as cut:
        blocks = [block for block in cut.blocks(ALL_BUCKETS, state=True) if block.kind is BlockKind.FULL]
    return {
        (block.table, int(key)): (int(block.times[row]), block.payload[row].tobytes())
        for block in blocks
        for row, key in enumerate(block.keys)
    }


@contextmanager
def opened(servers: Recorded, configs: Mapping[str, TableConfig] = ONE_TABLE, name: str = "rows") -> Iterator[PsStore]:
    with PsCluster(servers.addresses) as cluster, closing(PsStore(configs, servers=cluster, name=name)) as store:
        yield store


@contextmanager
def counting(servers: Recorded, *, worker: int = 0) -> Iterator[Counter]:
    with PsCluster(servers.addresses) as cluster:
        with use_table_defaults(TableDefaults(store=partial(PsStore, servers=cluster))):
            counter = Counter(IDS, worker=worker)
        with closing(counter.emb.store):
            yield counter


def train(worker: Worker, steps: int) -> None:
    """Some batches of two tables, whose times go on."""
    generator = torch.Generator().manual_seed(worker.last + 1)
    for _ in range(steps):
        ids = torch.randint(0, 300, (40,), generator=generator)
        seq = worker.last + 1
        stamp = BatchStamp(worker=worker.number, seq=seq)
        plan = worker.session.plan(ids, torch.tensor([0, 20, 40]), stamp=stamp)
        worker.session.read(plan, after=worker.last, step=0, train=True).result()
        rule = Update(previous=worker.last, step=0, learning_rates=torch.ones(3), times=1000 + seq * DAY // 10)
        worker.session.apply([(plan, torch.randn(plan.num_values, generator=generator))], rule).result()
        worker.last = seq


def test_rows_of_several_stores_recover_bit_for_bit_with_state_times_and_clocks(tmp_path: Path) -> None:
    with recorded(2, tmp_path) as servers:
        with opened(servers, TWO_TABLES, "first") as first, opened(servers, name="second") as second:
            workers = [Worker(first, 0), Worker(first, 1), Worker(second, 3)]
            for _ in range(3):
                train(workers[0], 4)
                train(workers[1], 2)
                workers[2].train([1, 2, 3])
                servers.write()
            before = content(first), content(second), first.moments(), second.stats().tables
        servers.replace(0)
        servers.replace(1)
        with opened(servers, TWO_TABLES, "first") as first, opened(servers, name="second") as second:
            assert (content(first), content(second)) == before[:2]
            after = first.moments()
            assert [each.life for each in after] == [each.life for each in before[2]]
            assert [list(each.newest_times) for each in after] == [list(each.newest_times) for each in before[2]]
            assert all(now.epoch > then.epoch for now, then in zip(after, before[2], strict=True))
            assert Worker(first, 1).session.applied == BatchStamp(worker=1, seq=5)
            train(Worker(first, 0), 1)


def test_rows_that_were_removed_are_not_recovered(tmp_path: Path) -> None:
    with recorded(1, tmp_path) as servers:
        with opened(servers) as store:
            worker = Worker(store)
            worker.train([1, 2, 3], time=1000)
            servers.write()
            worker.train([3, 4], time=1000 + DAY)
            assert (store.stats().evicted, store.evict(now=-1)) == (2, 0)  # the update has removed them
            servers.write()
            worker.train([1, 5], time=1000 + DAY)  # one of them is there again
            servers.write()
            assert store.erase(store.schema.names[0], torch.tensor([4, 5, 6])) == 2
            servers.write()
            worker.train([5], time=1000 + DAY)
            servers.write()
            before = content(store)
            assert len(before) == 3
        servers.replace(0)
        with opened(servers) as store:
            assert content(store) == before


def test_rows_that_were_emptied_are_not_recovered_and_later_ones_are(tmp_path: Path) -> None:
    with recorded(1, tmp_path) as servers:
        with opened(servers) as store:
            Worker(store).train([1, 2])
            servers.write()
            store.load([], buckets=ALL_BUCKETS, replace=True)
            store.resume(applied=[], generation=0)
            Worker(store).train([2, 3])
            servers.write()
        servers.replace(0)
        with opened(servers) as store:
            assert rows_of(store, [1, 2, 3]) == [[0.0, 0.0], [-1.0, -1.0], [-1.0, -1.0]]


def test_dense_weights_recover_with_what_their_optimizers_learned(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with recorded(2, tmp_path) as servers:
        model = Weights(rows=50)
        adam = OPTIMIZERS["adam"](model.parameters())
        with PsCluster(servers.addresses) as cluster, DenseClient(model, adam, cluster) as client:
            for seq in range(4):
                model.give_gradients(seq)
                client.push(BatchStamp(worker=2, seq=seq, position=b"p"), step=seq).result()
                if seq == 2:
                    servers.write()
                    before = client.freeze().gather()
            cluster.move(1, servers.replace(1))
            after = client.freeze().gather()
            stamps = {2: BatchStamp(worker=2, seq=2, position=b"p")}
            assert after.clocks[1] == before.clocks[1] == stamps
            assert after.clocks[0] != stamps  # the other one kept what it had
        pieces = [piece for piece in client.layout.servers[1] if piece.begin is None and piece.bytes]
        assert pieces
        for piece in pieces:
            assert torch.equal(after.weights[piece.name], before.weights[piece.name])
        assert servers.servers[1].recovered is not None
        assert dict(servers.servers[1].recovered.stamps["dense"]) == stamps


def test_a_recovery_point_is_exact_while_other_workers_push(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with recorded(2, tmp_path) as servers:
        with counting(servers) as counter, counting(servers, worker=1) as other, Pusher(other) as pusher:
            for _ in range(6):
                counter.step()
                pusher.wait_for_more()
                servers.write()
            pusher.wait_for_more()
        for index in range(2):
            servers.replace(index)
        monkeypatch.setattr(connections, "_LEVEL_SECONDS", 0.01)  # what the record lacks does not come again
        with counting(servers, worker=5) as counter:
            store = counter.emb.store
            assert isinstance(store, PsStore)
            with store.cut() as cut:
                clocks = cut.applied
                blocks = [block for block in cut.blocks(ALL_BUCKETS, state=True) if block.kind is BlockKind.FULL]
            for clock in clocks:
                batches = sum(stamp.seq + 1 for stamp in clock.stamps.values())
                assert batches > 6
                here = [block for block in blocks if block.bucket in clock.buckets]
                assert here
                assert {float(weight) for block in here for weight in block.weights(1).flat} == {-batches}


def test_increments_are_written_while_a_checkpoint_is(tmp_path: Path) -> None:
    with recorded(1, tmp_path) as servers:
        with opened(servers) as store:
            worker = Worker(store)
            worker.train([1])
            with store.cut():
                worker.train([1])
                servers.write()
        servers.replace(0)
        with opened(servers) as store:
            assert rows_of(store, [1]) == [[-2.0, -2.0]]


def test_a_server_recovers_before_any_client_can_reach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    recover, start_frames, bind = RecoveryManager.recover, PsServer._start_frames, PsServer._bind

    def noted(name: str, method: Any) -> Any:
        def call(self: Any, *arguments: Any) -> Any:
            order.append(name)
            return method(self, *arguments)

        return call

    monkeypatch.setattr(RecoveryManager, "recover", noted("rows", recover))
    monkeypatch.setattr(PsServer, "_start_frames", noted("frames", start_frames))
    monkeypatch.setattr(PsServer, "_bind", noted("control", bind))
    with recorded(1, tmp_path):
        assert order == ["rows", "frames", "control"]


def test_owners_that_had_state_have_it_again(tmp_path: Path) -> None:
    with recorded(2, tmp_path) as servers:
        with opened(servers) as store:
            Worker(store).train([1])
            store.owners.set_initialized()
            servers.write()
        servers.replace(0)
        with opened(servers) as store:
            assert store.cluster.uninitialized("rows/rows") == []
            assert store.cluster.uninitialized("dense") == [0, 1]


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "warning"),
    [
        (flip_a_bit, "a part before number 6 is missing; all later parts are skipped"),
        (Path.unlink, "a part before number 8 is missing; all later parts are skipped"),
    ],
)
def test_a_damaged_tail_costs_what_it_held_and_the_record_continues(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path], None],
    warning: str,
) -> None:
    with recorded(1, tmp_path) as servers:
        with opened(servers) as store:
            worker = Worker(store)
            for _ in range(4):
                worker.train([1])
                servers.write()
        servers.lose(0)
        damage(servers.segments(0)[3])
        with caplog.at_level(logging.WARNING):
            servers.restart(0)
        assert warning in caplog.text
        with opened(servers) as store:
            worker = Worker(store)
            assert (worker.last, rows_of(store, [1])) == (1, [[-2.0, -2.0]])
            worker.train([1])
            servers.write()
            assert len(servers.states(0)) == 1  # it has everything, and what was damaged is removed
        servers.replace(0)
        with opened(servers) as store:
            assert rows_of(store, [1]) == [[-3.0, -3.0]]


def test_a_disk_that_is_full_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with recorded(1, tmp_path) as servers:
        with opened(servers) as store:
            worker = Worker(store)
            worker.train([1])
            servers.write()
            with monkeypatch.context() as full, caplog.at_level(logging.WARNING):

                def refuse(*_: object) -> None:
                    raise ResourceExhaustedError("file: no space left on device")

                full.setattr(FileAppender, "append", refuse)
                for _ in range(3):
                    worker.train([2])
                    servers.write()
            assert caplog.text.count("no space left on device") == 1
            assert not list(tmp_path.rglob("*.tmp"))
            worker.train([3])
            servers.write()
        servers.replace(0)
        with opened(servers) as store:
            assert rows_of(store, [1, 2, 3]) == [[-1.0, -1.0], [-3.0, -3.0], [-1.0, -1.0]]


def test_nothing_is_written_while_nothing_happens(tmp_path: Path) -> None:
    with recorded(1, tmp_path) as servers, opened(servers) as store:
        Worker(store).train([1])
        servers.write()
        before = [path.read_bytes() for path in servers.segments(0)]
        servers.write()
        assert [path.read_bytes() for path in servers.segments(0)] == before


def test_a_record_without_checkpoints_restarts_from_scratch_when_it_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monolith.ps.recovery.recorder._LONG_BYTES", 8000)
    with recorded(1, tmp_path) as servers:
        with opened(servers) as store:
            worker = Worker(store)
            sizes = []
            for step in range(40):
                worker.train([1, step])
                servers.write()
                sizes.append(len(servers.segments(0)))
            before = content(store)
        assert max(sizes) < 20
        servers.replace(0)
        with opened(servers) as store:
            assert content(store) == before


def test_a_process_that_was_replaced_writes_nothing_any_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with recorded(1, tmp_path) as servers, opened(servers) as store:
        worker = Worker(store)
        worker.train([1])
        servers.write()
        with recorded(1, tmp_path) as later:
            worker.train([1])
            with caplog.at_level(logging.WARNING):
                servers.write()
                servers.write()
            assert caplog.text.count("another process has taken the place of this one") == 1
            later.replace(0)
            with opened(later) as again:
                assert rows_of(again, [1]) == [[-1.0, -1.0]]


def test_rows_of_a_model_that_has_changed_are_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with recorded(1, tmp_path) as servers:
        with opened(servers) as store:
            Worker(store).train([1])
            store.owners.set_initialized()
            servers.write()
        servers.replace(0)
        with caplog.at_level(logging.WARNING), opened(servers, TWO_TABLES) as store:
            assert content(store) == {}
            assert store.cluster.uninitialized("rows/rows") == [0]
        assert "recovered rows belong to tables that the model no longer has" in caplog.text
        with pytest.raises(FailedPreconditionError, match="had other tables"), opened(servers):
            pass


def test_parts_of_the_server_recover_with_it(tmp_path: Path) -> None:
    with recorded(1, tmp_path) as servers:
        loaded: list[bytes] = []
        state = b"one"
        servers.servers[0].add_recovered_part("job", lambda: state, loaded.append)
        servers.write()
        state = b"two" * 1000
        servers.write()
        servers.lose(0)
        server = servers.restart(0)
        server.add_recovered_part("other", lambda: b"", loaded.append)
        assert loaded == []
        server.add_recovered_part("job", lambda: b"", loaded.append)
        assert loaded == [state]


def test_an_interval_of_0_keeps_nothing(tmp_path: Path) -> None:
    with recorded(1, tmp_path) as servers, opened(servers) as store:
        Worker(store).train([1])
        servers.write()
    with recorded(1, tmp_path, interval=0.0) as servers:
        assert servers.servers[0].recovered is None
        assert not servers.servers[0].write_record()
        assert servers.segments(0) == []


def test_increments_come_by_themselves(tmp_path: Path) -> None:
    with recorded(1, tmp_path, interval=0.01) as servers:
        with opened(servers) as store:
            worker = Worker(store)
            worker.train([1])
            while worker.last < 2000 and not servers.states(0):
                worker.train([1])
        servers.servers[0].close()  # and one comes last
        servers.restart(0)
        with opened(servers) as store:
            assert rows_of(store, [1]) == [[-float(worker.last + 1)] * 2]


@pytest.mark.parametrize("wrong", [{"folder": "s3://x"}, {"folder": ""}, {"folder": "x", "interval_seconds": -1.0}])
def test_a_config_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="recovery record"):
        RecoveryConfig(**wrong)


def test_a_server_that_cannot_be_started_leaves_the_record_to_the_one_that_lives(tmp_path: Path) -> None:
    with recorded(1, tmp_path) as servers:
        with opened(servers) as store:
            worker = Worker(store)
            worker.train([1])
            servers.write()
            lives = servers.servers[0]
            with pytest.raises(UnavailableError):
                PsServer(0, num_ps=1, recovery=servers.options, port=int(lives.address.rpartition(":")[2]))
            with pytest.raises(UnavailableError):
                PsServer(0, num_ps=1, recovery=servers.options, frame_port=int(lives.frame_address.rpartition(":")[2]))
            worker.train([1])
            servers.write()
        servers.replace(0)
        with opened(servers) as store:
            assert rows_of(store, [1]) == [[-2.0, -2.0]]
