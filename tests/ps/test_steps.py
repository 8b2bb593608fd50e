"""The steps of a whole job: servers count the batches of all workers, and answers carry those of the others."""

from __future__ import annotations

from contextlib import closing

import torch
from torch import nn

from contracts.one_worker import ONE_TABLE, Worker, stamp
from monolith.ps import DenseClient, PsCluster, PsStore
from monolith.tables.batch import BatchStamp
from monolith.tables.history import OwnerClock
from ps.server_fixtures import running, store_of


def test_a_store_receives_the_steps_of_other_workers_with_every_join_and_push() -> None:
    with running(2) as servers, store_of(servers) as first, store_of(servers) as second:
        assert first.steps_of_others == -1
        one = Worker(first, 4)
        assert first.steps_of_others == 0
        one.train([1, 2])
        one.train([1])
        other = Worker(second, 9)
        assert second.steps_of_others == 2
        other.train([3])
        assert second.steps_of_others == 2
        one.train([2])
        assert first.steps_of_others == 1
        assert [server.steps() for server in servers] == [4, 4]


def test_steps_are_restored_with_the_clocks() -> None:
    with running(2) as servers, store_of(servers) as store:
        Worker(store, 0).train([1, 2])
        clocks = {worker: stamp(seq, worker=worker) for worker, seq in ((0, 11), (5, 6))}
        store.resume(applied=[OwnerClock(range(1024), clocks)], generation=0)
        assert servers[0].steps() == 12 + 7
        store.join(0)
        assert store.steps_of_others == 7


def test_without_rows_a_server_counts_the_pushes_of_dense_weights() -> None:
    with running(2) as servers, PsCluster([server.address for server in servers]) as cluster:
        assert servers[0].steps() == 0
        model = nn.Linear(2, 2)
        with closing(DenseClient(model, torch.optim.SGD(model.parameters(), lr=0.5), cluster)) as client:
            assert client.steps_of_others == -1
            client.join(0)
            assert client.steps_of_others == 0
            for seq in range(3):
                client.push(BatchStamp(worker=0, seq=seq), step=seq).result()
            client.join(1)
            assert client.steps_of_others == 3
            client.push(BatchStamp(worker=1, seq=5), step=5)
            client.flush()
            assert client.steps_of_others == 3
            client.join(0)
            client.push(BatchStamp(worker=0, seq=3), step=3).result()
            assert client.steps_of_others == 6
            assert servers[0].steps() == 10


def test_the_first_store_by_name_counts() -> None:
    with (
        running(1) as servers,
        store_of(servers) as rows,
        closing(PsStore(ONE_TABLE, servers=rows.cluster, name="another")) as another,
    ):
        Worker(rows).train([1])
        assert servers[0].steps() == 0
        Worker(another).train([1])
        assert servers[0].steps() == 1
