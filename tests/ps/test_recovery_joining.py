"""A server that was started anew, and has nothing, is noticed before anybody trains on it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

from contracts.one_worker import ONE_TABLE, Worker, rows_of
from monolith.errors import FailedPreconditionError, UnavailableError
from monolith.ps import DenseClient, PsCluster, PsServer, PsStore
from monolith.rpc.protos import parameter_server_pb2 as messages
from monolith.tables.batch import BatchStamp
from ps.recorded import recorded
from ps.server_fixtures import running


@contextmanager
def opened(addresses: list[str]) -> Iterator[PsStore]:
    with PsCluster(addresses) as cluster, closing(PsStore(ONE_TABLE, servers=cluster)) as store:
        yield store


def addresses_of(servers: list[PsServer]) -> list[str]:
    return [server.address for server in servers]


@pytest.mark.usefixtures("short_level")
@pytest.mark.parametrize("index", [0, 1])
def test_no_worker_joins_where_one_server_has_lost_its_rows(index: int, caplog: pytest.LogCaptureFixture) -> None:
    with running(2) as servers:
        with opened(addresses_of(servers)) as store:
            Worker(store).train([1, 2, 3])
            store.owners.set_initialized()
            kept = store.moments()[1 - index].life
        servers[index].close()
        again = PsServer(index, num_ps=2)
        with again as servers[index], caplog.at_level(logging.WARNING), opened(addresses_of(servers)) as store:
            with pytest.raises(UnavailableError, match=f"server {index}: restarted without.*wait until it is restored"):
                Worker(store)  # it comes before a chief
            with pytest.raises(FailedPreconditionError, match="run id of store"):
                store.cut()
            moments = store.cluster.ask("Moment", messages.StoreRequest(store=store.name))
            assert moments[1 - index].life == kept
            assert store.owners.uninitialized() == [index]
            store.owners.set_initialized()  # a chief has restored it, or found nothing to restore
            Worker(store).train([1])
        assert f"server {index} was restarted without its state" in caplog.text


def test_a_worker_that_has_seen_state_does_not_train_on_servers_that_have_all_lost_it() -> None:
    with running(1) as servers, opened(addresses_of(servers)) as store:
        Worker(store).train([1])
        store.owners.set_initialized()
        Worker(store)
        servers[0].close()
        with PsServer(0, num_ps=1) as again:
            store.cluster.move(0, again.address)
            with opened([again.address]) as other:  # somebody who has not; it makes the store
                Worker(other)
            with pytest.raises(UnavailableError, match="server 0: restarted without"):
                Worker(store)


def test_dense_weights_that_were_lost_are_noticed_as_well() -> None:
    weight = nn.Parameter(torch.zeros(3))
    with running(2) as servers:
        sgd = torch.optim.SGD([weight], lr=1.0)
        with PsCluster(addresses_of(servers)) as cluster, DenseClient({"w": weight}, sgd, cluster) as client:
            client.join(0)
            client.set_initialized()
            servers[1].close()
            with PsServer(1, num_ps=2) as servers[1]:
                cluster.move(1, servers[1].address)
                assert client.uninitialized() == [1]
                with pytest.raises(UnavailableError, match=r"server 1: restarted without.*'dense'"):
                    client.join(0)
                client.set_initialized()
                assert client.join(0).applied is None


def test_without_a_chief_no_server_is_marked_as_having_state(caplog: pytest.LogCaptureFixture) -> None:
    with running(2) as servers:
        with opened(addresses_of(servers)) as store:
            Worker(store).train([1, 2, 3])
        servers[1].close()
        with PsServer(1, num_ps=2) as servers[1], opened(addresses_of(servers)) as store:
            Worker(store).train([1])
    assert "wait until" not in caplog.text


def test_a_recovered_server_is_joined_and_accepts_pushes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with recorded(2, tmp_path) as servers, opened(servers.addresses) as store, caplog.at_level(logging.INFO):
        worker = Worker(store)
        worker.train([1, 2, 3])
        store.owners.set_initialized()
        servers.write()
        worker.train([1, 2, 3])
        store.cluster.move(1, servers.replace(1))
        assert "is a new process, which recovered the state of the former one" in caplog.text
        again = Worker(store)
        lost = [None if each is None else each.seq for each in again.session.applied_by_server]
        assert lost == [1, 0]
        plan = again.plan([1, 2, 3], 2)  # goes on behind what was acknowledged
        again.push(plan)
        rows = {tuple(row) for row in rows_of(store, [1, 2, 3])}
        assert rows <= {(-3.0, -3.0), (-2.0, -2.0)}
        assert [each.seq for each in store.join(0).applied_by_server if each is not None] == [2, 2]
        assert store.join(0).applied == BatchStamp(worker=0, seq=2, position=b"0/2", event_time_ms=2)
