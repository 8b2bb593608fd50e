"""The original's restore_test over real servers: one that was lost is restored, those that live keep what they have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest
import torch
from torch import nn

from checkpoint.runs import Run, blocks_in
from checkpoint.zygote import Zygote
from monolith.checkpoint import PsMonitor, Saver
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.hooks import (
    CheckpointRestorerHook,
    HashTableCheckpointRestorerListener,
    HashTableCheckpointSaverListener,
    NoFirstSaveCheckpointSaverHook,
)
from monolith.nn.table_defaults import TableDefaults, use_table_defaults
from monolith.ps import PsCluster, PsStore
from monolith.ps.dense.client import DenseClient
from monolith.rpc.protos import parameter_server_pb2 as messages
from monolith.tables.batch import BatchStamp
from monolith.tables.formats.row_block import BlockKind
from monolith.tables.history import ALL_BUCKETS
from monolith.tables.store import Store
from monolith.testing import StepLoop
from monolith.train.saving.server_rows import empty_rows, owners_of, set_initialized
from ps.counting import Counter, second_worker
from ps.served import ServerProcess, served

IDS = range(40)

pytestmark = pytest.mark.usefixtures("short_level")


class Variables(Counter):
    """Counts two dense weights, each on a server of its own, beside the ids."""

    def __init__(self, ids: Sequence[int], cluster: PsCluster) -> None:
        super().__init__(ids)
        self.v0, self.v1 = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
        sgd = torch.optim.SGD([self.v0, self.v1], lr=1.0)
        self.dense = DenseClient({"v0": self.v0, "v1": self.v1}, sgd, cluster)
        self.state.optimizers["dense"] = sgd
        self.state.dense = self.dense

    def step(self, stamp: BatchStamp | None = None) -> None:
        stamp = self.state.next_stamp() if stamp is None else stamp
        for each in (self.v0, self.v1):
            each.grad = torch.ones(1)
        self.dense.push(stamp, step=self.state.global_step).result()
        super().step(stamp)

    @property
    def variables(self) -> list[float]:
        self.dense.pull()
        return [-float(each.detach()) for each in (self.v0, self.v1)]


class Servers:
    """Two servers, each a process of its own, any of which can be replaced by a new one."""

    def __init__(self, zygote: Zygote) -> None:
        self._zygote = zygote
        self._processes = [self._start(index) for index in range(2)]

    @property
    def addresses(self) -> list[str]:
        return [process.addresses[0] for process in self._processes]

    def replace(self, index: int) -> str:
        """Kills one; the address of the new one."""
        self._processes[index].kill()
        self._processes[index] = self._start(index)
        return self.addresses[index]

    def close(self) -> None:
        for process in self._processes:
            process.kill()

    def _start(self, index: int) -> ServerProcess:
        return ServerProcess(self._zygote, (index, 2))


@pytest.fixture
def servers(zygote: Zygote) -> Iterator[Servers]:
    found = Servers(zygote)
    yield found
    found.close()


Chief = Callable[[], tuple[PsCluster, Variables]]


@pytest.fixture
def chief(servers: Servers) -> Iterator[Chief]:
    """Begins as the process of a chief does: finds the servers and builds the model."""
    with ExitStack() as closing:

        def begin() -> tuple[PsCluster, Variables]:
            cluster = closing.enter_context(PsCluster(servers.addresses))
            with use_table_defaults(TableDefaults(store=partial(PsStore, servers=cluster))):
                counter = Variables(IDS, cluster)
            closing.callback(counter.emb.store.close)
            closing.callback(counter.dense.close)
            return cluster, counter

        yield begin


def session(counter: Counter, saver: Saver, *, steps: int) -> None:
    hooks = [
        CheckpointRestorerHook(saver, state=counter.state),
        NoFirstSaveCheckpointSaverHook(saver, state=counter.state),
    ]
    with StepLoop(hooks) as loop:
        for _ in range(steps):
            loop.run(counter.step)


def counts(counter: Counter) -> list[set[float]]:
    """How often the ids of each server were counted."""
    found: dict[int, set[float]] = defaultdict(set)
    with counter.emb.cut() as cut:
        for block in cut.blocks(ALL_BUCKETS, state=True):
            if block.kind is BlockKind.FULL:
                found[block.bucket // 512] |= {-float(value) for value in block.weights(1).flatten()}
    return [found[0], found[1]]


def values(counter: Variables) -> list[tuple[float, float]]:
    """What each server has counted: its variable, and its ids."""
    found = counts(counter)
    assert [len(each) for each in found] == [1, 1]
    return list(zip(counter.variables, (each.pop() for each in found), strict=True))


def test_restore_with_ps_monitor(tmp_path: Path, servers: Servers, chief: Chief) -> None:
    _, counter = chief()
    session(counter, Saver(tmp_path, ps_monitor=PsMonitor(2)), steps=1)
    assert values(counter) == [(1, 1), (1, 1)]
    counter.step()  # without any hook
    assert values(counter) == [(2, 2), (2, 2)]

    servers.replace(1)
    cluster, counter = chief()  # one of the original servers, and a new one
    monitor = PsMonitor(cluster)
    assert not monitor.is_ps_uninitialized(counter.state, "/job:ps/task:0")
    assert monitor.is_ps_uninitialized(counter.state, "/job:ps/task:1")
    session(counter, Saver(tmp_path, ps_monitor=monitor), steps=0)
    assert values(counter) == [(2, 2), (1, 1)]
    assert not monitor.is_ps_uninitialized(counter.state, "/job:ps/task:1")
    counter.step()  # the batch that one server lacks; the other ignores it
    assert values(counter) == [(2, 2), (2, 2)]
    counter.step()
    assert values(counter) == [(3, 3), (3, 3)]

    servers.replace(0)
    servers.replace(1)
    _, counter = chief()  # new servers only
    session(counter, Saver(tmp_path, ps_monitor=PsMonitor(2)), steps=0)
    assert values(counter) == [(1, 1), (1, 1)]
    assert counter.state.global_step == 1


@pytest.mark.slow
def test_restore_without_ps_monitor(tmp_path: Path, servers: Servers, chief: Chief) -> None:
    _, counter = chief()
    session(counter, Saver(tmp_path), steps=1)
    counter.step()
    servers.replace(1)
    _, counter = chief()
    session(counter, Saver(tmp_path), steps=0)
    assert values(counter) == [(1, 1), (1, 1)]
    assert counter.state.global_step == 1


@pytest.mark.parametrize("index", [0, 1])
def test_a_surviving_chief_continues_from_its_own_step(
    tmp_path: Path, servers: Servers, chief: Chief, index: int
) -> None:
    cluster, counter = chief()
    saver = Saver(tmp_path, ps_monitor=PsMonitor(cluster))
    session(counter, saver, steps=1)
    counter.step()
    cluster.move(index, servers.replace(index))
    with pytest.raises(FailedPreconditionError, match="may have restarted"):
        counter.emb.cut()
    session(counter, saver, steps=0)
    assert values(counter) == [(1, 1) if number == index else (2, 2) for number in range(2)]
    assert counter.state.global_step == 2  # the run is not set back, and the lost batch not made again
    counter.step()
    assert values(counter) == [(2, 2) if number == index else (3, 3) for number in range(2)]


# A server that forgets a store has nothing of it, as one that was started anew; what follows needs no processes.


def lose(cluster: PsCluster, store: str, *indices: int) -> None:
    for index in indices:
        cluster.ask_one(index, "DropStore", messages.StoreRequest(store=store))


class Moment(NamedTuple):
    """What each server has of a store."""

    rows: list[list[Any]]
    filters: list[list[Any]]
    seqs: list[int]

    @classmethod
    def of(cls, store: Store, num_ps: int) -> Self:
        cut = store.cut()
        blocks = blocks_in(cut)
        cut.release()
        by_server = [[block for block in blocks if block[2] * num_ps // 1024 == server] for server in range(num_ps)]
        return cls(
            [[block for block in each if block[0] != BlockKind.FILTER] for each in by_server],
            [[block for block in each if block[0] == BlockKind.FILTER] for each in by_server],
            [clock.stamps[0].seq for clock in cut.applied],
        )


@pytest.mark.parametrize(("num_ps", "lost"), [(2, (0,)), (3, (1,)), (5, (0, 1, 3)), (3, ())])
def test_rows_of_lost_servers_are_restored_and_filters_of_all(
    tmp_path: Path, clusters: Mapping[int, PsCluster], num_ps: int, lost: tuple[int, ...]
) -> None:
    with served(clusters[num_ps]) as place, Saver(tmp_path, ps_monitor=PsMonitor(num_ps)) as saver:
        run = Run(min_count=2)
        run.steps(4)
        saver.save(run.state)
        saver.setup_ps_initialized_state(run.state)
        saved = Moment.of(run.model.emb.store, num_ps)
        run.steps(3)
        newer = Moment.of(run.model.emb.store, num_ps)
        assert all(saved.filters[server] != newer.filters[server] for server in range(num_ps))
        lose(clusters[num_ps], place.name, *lost)
        saver.restore(run.state)
        found = Moment.of(run.model.emb.store, num_ps)
        assert found.rows == [(saved if server in lost else newer).rows[server] for server in range(num_ps)]
        for before, after in zip(saved.filters, found.filters, strict=True):
            counted = {block[2] for block in before}
            assert [block for block in after if block[2] in counted] == before
        assert found.seqs == [3 if server in lost else 6 for server in range(num_ps)]
        assert run.state.global_step == 7
        run.steps(1)
        assert Moment.of(run.model.emb.store, num_ps).seqs == [7] * num_ps


def test_without_a_checkpoint_a_lost_server_begins_with_nothing(
    tmp_path: Path, clusters: Mapping[int, PsCluster]
) -> None:
    with served(clusters[2]) as place, Saver(tmp_path, ps_monitor=PsMonitor(2)) as saver:
        counter = Counter(IDS)
        saver.setup_ps_initialized_state(counter.state)
        counter.step()
        lose(clusters[2], place.name, 1)
        assert saver.restore(counter.state) is None
        counter.emb.leave()
        saver.setup_ps_initialized_state(counter.state)
        counter.step()
        assert counts(counter) == [{2}, {1}]


def test_a_run_from_scratch_empties_live_and_lost_servers(
    clusters: Mapping[int, PsCluster],
) -> None:
    with served(clusters[2]) as place:
        counter = Counter(IDS)
        set_initialized(owners_of(counter.state))
        counter.step()
        lose(clusters[2], place.name, 1)
        assert [owners.uninitialized() for owners in owners_of(counter.state)] == [[1]]
        empty_rows(counter.state)
        counter.emb.leave()
        set_initialized(owners_of(counter.state))
        counter.step()
        assert counts(counter) == [{1}, {1}]


def test_a_single_server_is_restored_whatever_it_has(tmp_path: Path, clusters: Mapping[int, PsCluster]) -> None:
    with served(clusters[1]), Saver(tmp_path, ps_monitor=PsMonitor(1)) as saver:
        counter = Counter(IDS)
        counter.step()
        saver.save(counter.state)
        saver.setup_ps_initialized_state(counter.state)
        counter.step()
        saver.restore(counter.state)
        assert set(counter.counts(IDS)) == {1}
        assert counter.state.global_step == 1


def test_a_monitor_of_another_number_of_servers_is_refused(clusters: Mapping[int, PsCluster]) -> None:
    with served(clusters[2]):
        counter = Counter(IDS)
        with pytest.raises(InvalidArgumentError, match="made for 3 servers, but store 'emb' is on 2"):
            PsMonitor(3).setup_ps_initialized_state(counter.state)


@pytest.mark.parametrize("monitored", [False, True])
def test_listeners_save_tables_alongside_a_dense_saver(
    tmp_path: Path, clusters: Mapping[int, PsCluster], *, monitored: bool
) -> None:
    monitor = PsMonitor(clusters[2]) if monitored else None
    basename = f"{tmp_path}/model.ckpt"
    with served(clusters[2]) as place:
        counter = Counter(IDS)

        def run(steps: int) -> None:
            saver = Saver(tmp_path, ps_monitor=monitor, dense_only=True)
            tables = HashTableCheckpointRestorerListener(basename, state=counter.state, ps_monitor=monitor)
            restorer = CheckpointRestorerHook(saver, state=counter.state, listeners=[tables])
            listeners = [HashTableCheckpointSaverListener(basename, state=counter.state)]
            saving = NoFirstSaveCheckpointSaverHook(saver, state=counter.state, listeners=listeners, save_steps=1)
            with StepLoop([restorer, saving]) as loop:
                for _ in range(steps):
                    loop.run(counter.step)

        run(1)
        counter.step()
        lose(clusters[2], place.name, 1)
        counter = Counter(IDS)  # the chief begins anew
        run(0)
        assert counts(counter) == ([{2}, {1}] if monitored else [{1}, {1}])
        counter.step()
        assert counts(counter)[1] == {2}


def test_a_worker_resumes_after_the_server_that_was_restored(tmp_path: Path, clusters: Mapping[int, PsCluster]) -> None:
    with served(clusters[2]) as place, Saver(tmp_path, ps_monitor=PsMonitor(2)) as saver:
        counter = Counter(IDS[:1])
        with second_worker(counter.emb.store, IDS) as other:
            other.step()
            saver.save(counter.state)
            saver.setup_ps_initialized_state(counter.state)
            other.step()
            other.step()
            lose(clusters[2], place.name, 1)
            saver.restore(counter.state)
            with pytest.raises(FailedPreconditionError, match="does not keep these rows any more"):
                other.step()
            other.emb.discard()
        with second_worker(counter.emb.store, IDS) as other:
            joined = other.emb.join(1)
            assert joined.applied is not None
            assert (joined.applied.seq, joined.next_seq) == (0, 3)
            for seq in (1, 2):  # comes again; the server that lives ignores it
                other.step(BatchStamp(worker=1, seq=seq))
                assert counts(other) == [{3}, {seq + 1}]
            other.step(BatchStamp(worker=1, seq=3))
            assert counts(other) == [{4}, {4}]
