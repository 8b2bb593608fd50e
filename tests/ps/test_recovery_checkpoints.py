"""A server that comes back begins with the newest checkpoint, whoever wrote it, and with nothing of another history."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import monolith as ml
from monolith.checkpoint import PsMonitor, Saver, TrainState
from monolith.deltalog.publish.erasing import erase_from_checkpoint
from monolith.nn.table_defaults import TableDefaults, use_table_defaults
from monolith.ps import DenseClient, PsCluster, PsStore
from monolith.ps.recovery.recorder import Recorder
from monolith.tables.batch import BatchStamp
from ps.counting import Counter
from ps.recorded import Recorded, recorded

IDS = range(40)


class Variables(Counter):
    """Counts a dense weight beside the ids."""

    def __init__(self, cluster: PsCluster) -> None:
        super().__init__(IDS)
        self.dense_weight = nn.Parameter(torch.zeros(2))
        sgd = torch.optim.SGD([self.dense_weight], lr=1.0)
        self.dense = DenseClient({"dense_weight": self.dense_weight}, sgd, cluster)
        self.state.optimizers["dense"] = sgd
        self.state.dense = self.dense

    def step(self, stamp: BatchStamp | None = None) -> None:
        stamp = self.state.next_stamp() if stamp is None else stamp
        self.dense_weight.grad = torch.ones(2)
        self.dense.push(stamp, step=self.state.global_step).result()
        super().step(stamp)

    def all_counts(self) -> set[float]:
        """How often everything was counted, by rows and by the dense weight."""
        self.dense.pull()
        return {*self.counts(IDS), *(-self.dense_weight.detach()).tolist()}


@contextmanager
def chief(servers: Recorded) -> Iterator[Variables]:
    """Finds the servers and builds the model, as a chief does."""
    with ExitStack() as closed:
        cluster = closed.enter_context(PsCluster(servers.addresses))
        with use_table_defaults(TableDefaults(store=partial(PsStore, servers=cluster))):
            counter = Variables(cluster)
        closed.enter_context(closing(counter.emb.store))
        closed.enter_context(closing(counter.dense))
        yield counter


def cluster_of(counter: Counter) -> PsCluster:
    assert isinstance(counter.emb.store, PsStore)
    return counter.emb.store.cluster


def save(counter: Counter, folder: Path) -> None:
    with Saver(folder) as saver:
        saver.save(counter.state)


def restore(counter: Counter, folder: Path) -> None:
    """As a chief restores everybody, and says so."""
    monitor = PsMonitor(cluster_of(counter))
    with Saver(folder) as saver:
        saver.restore(counter.state)
    monitor.setup_ps_initialized_state(counter.state)


def test_rows_come_from_the_checkpoint_and_what_followed_from_the_record(tmp_path: Path) -> None:
    model, record = tmp_path / "model", tmp_path / "record"
    with recorded(2, record, model_dir=model) as servers:
        with chief(servers) as counter:
            for _ in range(3):
                counter.step()
                servers.write()
            save(counter, model)
            counter.step()
            servers.write()
            assert [len(servers.states(index)) for index in range(2)] == [1, 1]
            counter.step()
            servers.write()
        for index in range(2):
            servers.replace(index)
            recovered = servers.servers[index].recovered
            assert recovered is not None
            assert recovered.step == 3
        with chief(servers) as counter:
            assert counter.all_counts() == {5.0}
            assert counter.emb.store.join(0).applied == BatchStamp(worker=0, seq=4)


@pytest.mark.usefixtures("short_level")
def test_a_checkpoint_that_is_newer_than_the_record_is_enough(tmp_path: Path) -> None:
    model, record = tmp_path / "model", tmp_path / "record"
    with recorded(2, record, model_dir=model) as servers:
        with chief(servers) as counter:
            counter.step()
            servers.write()
            counter.step()
            save(counter, model)
        servers.replace(1)
        with chief(servers) as counter:
            assert counter.counts(IDS) == [2.0] * len(IDS)
            assert counter.emb.store.join(0).applied == BatchStamp(worker=0, seq=1)
            counter.emb.store.cut().release()  # they are of one life


def test_a_restore_voids_the_record_and_the_record_continues_from_it(tmp_path: Path) -> None:
    model, record = tmp_path / "model", tmp_path / "record"
    with recorded(2, record, model_dir=model) as servers:
        with chief(servers) as counter:
            counter.step()
            save(counter, model)
            for _ in range(3):
                counter.step()
                servers.write()
            restore(counter, model)
            life = [each.life for each in store_of(counter).moments()]
        servers.replace(0)  # before any increment
        with chief(servers) as counter:
            assert counter.counts(IDS) == [1.0] * len(IDS)
            assert [each.life for each in store_of(counter).moments()] == life
            cluster = cluster_of(counter)
            assert cluster.uninitialized("rows/rows") == []
        with chief(servers) as counter:
            servers.write()
            counter.step()
            servers.write()
        servers.replace(0)
        recovered = servers.servers[0].recovered
        assert recovered is not None
        assert recovered.step == 1
        with chief(servers) as counter:
            assert counter.counts(IDS) == [2.0] * len(IDS)


def store_of(counter: Counter) -> PsStore:
    assert isinstance(counter.emb.store, PsStore)
    return counter.emb.store


def test_a_checkpoint_of_another_number_of_servers_is_a_base(tmp_path: Path) -> None:
    model = tmp_path / "model"
    with recorded(3, tmp_path / "three", model_dir=model) as servers, chief(servers) as counter:
        counter.step()
        counter.step()
        save(counter, model)
    with recorded(2, tmp_path / "two", model_dir=model) as servers:
        with chief(servers) as counter:
            restore(counter, model)
            counter.step()
            servers.write()
        for index in range(2):
            servers.replace(index)
        with chief(servers) as counter:
            assert counter.all_counts() == {3.0}


def test_a_record_whose_checkpoint_was_deleted_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = tmp_path / "model"
    with recorded(1, tmp_path / "record", model_dir=model) as servers:
        with chief(servers) as counter:
            counter.step()
            servers.write()
            save(counter, model)
            counter.step()
            servers.write()
        servers.lose(0)
        shutil.rmtree(model)
        model.mkdir()
        with caplog.at_level(logging.WARNING):
            servers.restart(0)
        assert "is based on a deleted checkpoint, and there is no other" in caplog.text
        with chief(servers) as counter:
            assert cluster_of(counter).uninitialized("rows/rows") == [0]
            assert counter.counts(IDS) == [0.0] * len(IDS)
            counter.step()
            servers.write()  # and begins anew
        servers.replace(0)
        with chief(servers) as counter:
            assert counter.counts(IDS) == [1.0] * len(IDS)


def test_a_checkpoint_of_another_history_leaves_the_record_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = tmp_path / "model"
    with recorded(1, tmp_path / "record", model_dir=model) as servers:
        with chief(servers) as counter:
            counter.step()
            servers.write()
        servers.lose(0)
        with recorded(1, tmp_path / "other", model_dir=model) as others, chief(others) as counter:
            for _ in range(3):
                counter.step()
            save(counter, model)
        with caplog.at_level(logging.WARNING):
            servers.restart(0)
        assert "model.ckpt-3' is of another history" in caplog.text
        with chief(servers) as counter:
            restore(counter, model)
            assert counter.all_counts() == {3.0}


def test_rows_erased_from_the_checkpoint_are_not_recovered_from_the_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = tmp_path / "model"
    with recorded(1, tmp_path / "record", model_dir=model) as servers:
        with chief(servers) as counter:
            counter.step()
            save(counter, model)
            counter.step()
            servers.write()  # an increment of the record has the row, too
            (slot,) = counter.emb.slots
        servers.lose(0)
        assert erase_from_checkpoint(str(model / "model.ckpt-1"), slot, torch.tensor([3])).rows == 1
        with caplog.at_level(logging.WARNING):
            servers.restart(0)
        assert "model.ckpt-1' is of another history" in caplog.text
        with chief(servers) as counter:
            restore(counter, model)
            assert counter.counts(IDS) == [1.0, 1.0, 1.0, 0.0, *[1.0] * (len(IDS) - 4)]


@pytest.mark.parametrize("is_whole", [False, True])
def test_what_admission_counted_is_that_of_the_checkpoint(tmp_path: Path, is_whole: bool) -> None:
    model = tmp_path / "model"

    @contextmanager
    def filtering() -> Iterator[ml.Embeddings]:
        with PsCluster(servers.addresses) as cluster:
            with use_table_defaults(TableDefaults(store=partial(PsStore, servers=cluster))):
                emb = ml.Embeddings({"id": ml.Slot(1, min_count=4)}, ml.row_optimizers.Sgd(learning_rate=1.0))
            with closing(emb.store):
                yield emb

    def offer(emb: ml.Embeddings, number: int = 7) -> int:
        emb({"id": torch.tensor([number])})["id"].sum().backward()
        emb.step()
        return emb.store.stats().rows

    with recorded(1, tmp_path / "record", model_dir=model) as servers:
        with filtering() as emb:
            assert [offer(emb) for _ in range(2)] == [0, 0]
            if not is_whole:  # else the first increment has all rows, and is newer than the checkpoint
                servers.write()
            with Saver(model) as saver:
                saver.save(TrainState(model=emb))
            assert offer(emb) == 0
            servers.write()
        servers.replace(0)
        with filtering() as emb:
            needed = next(times for times in range(1, 20) if offer(emb))
            assert needed == next(times for times in range(1, 20) if offer(emb, 8) == 2) - 2  # not three


def test_a_lost_server_that_recovered_is_not_restored_by_a_chief(tmp_path: Path) -> None:
    model = tmp_path / "model"
    with recorded(2, tmp_path / "record", model_dir=model) as servers:
        with chief(servers) as counter:
            monitor = PsMonitor(cluster_of(counter))
            counter.step()
            with Saver(model, ps_monitor=monitor) as saver:
                saver.save(counter.state)
                saver.setup_ps_initialized_state(counter.state)
            counter.step()
            servers.write()
        servers.replace(1)
        with chief(servers) as counter:
            monitor = PsMonitor(cluster_of(counter))
            with Saver(model, ps_monitor=monitor) as saver:
                saver.restore(counter.state)
            assert counter.all_counts() == {2.0}


def test_an_increment_makes_way_for_a_restore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "model"
    with recorded(1, tmp_path / "record", model_dir=model) as servers, chief(servers) as counter:
        counter.step()
        save(counter, model)
        counter.step()
        recorder = servers.servers[0]._recovery._recorder
        assert isinstance(recorder, Recorder)
        with monkeypatch.context() as waiting:
            waiting.setattr(recorder, "_waiting", 1)
            assert not servers.servers[0].write_record()
        assert servers.servers[0].write_record()


def test_weights_that_do_not_change_hold_back_no_rows(tmp_path: Path) -> None:
    model = tmp_path / "model"
    with recorded(1, tmp_path / "record", model_dir=model) as servers:
        with chief(servers) as counter:
            counter.step()
            servers.write()
            for step in range(1, 4):
                rows_only = counter.state.next_stamp()
                Counter.step(counter, rows_only)
                servers.write()
                save(counter, model)
                servers.write()
                servers.write()
                assert len(servers.states(0)) <= 2, step
        servers.replace(0)
        with chief(servers) as counter:
            counter.dense.pull()
            assert counter.dense_weight.tolist() == [-1.0, -1.0]
            assert counter.counts(IDS) == [4.0] * len(IDS)
