"""Workers that die in the middle of a push, and workers of the same number: nothing is lost, nothing counted twice."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress

import pytest
import torch

from checkpoint.zygote import Zygote
from monolith.errors import FailedPreconditionError
from monolith.nn import BatchContext, Embeddings, Slot
from monolith.ps import PsServer, PsStore
from monolith.rpc.protos import parameter_server_pb2 as messages
from monolith.tables import BatchStamp, Store, TableConfig, Update, WorkerSession
from monolith.tables.initializers import Zeros
from monolith.tables.row_optimizers import Sgd
from system.crash import CONFIGS

IDS = torch.arange(64)
"""Enough that every server has some of them."""
ENDS_HANGS_SECONDS = 120.0

WORKER = """
import os, signal
import torch
from monolith import Embeddings, Slot, initializers, row_optimizers
from monolith.nn import BatchContext
from monolith.ps import PsStore
from monolith.tables import BatchStamp

told, tell = os.pipe()
signal.signal(signal.SIGUSR1, lambda *_: os.write(tell, b'.'))
stores = []

def open_store(configs):
    stores.append(PsStore(configs, servers=arguments[0].split(",")))
    return stores[0]

slots = {"ids": Slot(1, initializer=initializers.Zeros())}
model = Embeddings(slots, row_optimizers.Sgd(learning_rate=1.0), store=open_store)
stores[0].rows.move(1, ("127.0.0.1", int(arguments[1])), stores[0].frames_words[1])
for number in range(2):
    stamp = BatchStamp(worker=0, seq=number, position=str(number + 1).encode())
    with BatchContext({"ids": torch.arange(64)}, stamp=stamp) as turn:
        model(turn.features)["ids"].sum().backward()
    print('"computed"', flush=True)
    os.read(told, 1)
    model.step()
"""


class Proxy:
    """Passes bytes on between workers and the frames of one server, until it is told to keep those of workers."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._keeps = False
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def keep(self) -> None:
        """From now on nothing of a worker reaches the server."""
        self._keeps = True

    def close(self) -> None:
        self._keeps = True
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(ENDS_HANGS_SECONDS)
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                worker, _ = self._listening.accept()
                server = socket.create_connection(self._target)
                self._sockets += [worker, server]
                self._threads.append(threading.Thread(target=self._pass_on, args=(worker, server), daemon=True))
                self._threads[-1].start()

    def _pass_on(self, worker: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                ready, _, _ = select.select([worker, server], [], [])
                for source in ready:
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    if source is server:
                        worker.sendall(data)
                    elif not self._keeps:
                        server.sendall(data)


@pytest.fixture
def servers() -> Iterator[list[PsServer]]:
    with ExitStack() as running:
        yield [running.enter_context(PsServer(index, num_ps=2)) for index in range(2)]


@pytest.fixture
def store(servers: list[PsServer]) -> Iterator[PsStore]:
    with closing(PsStore(CONFIGS, servers=[server.address for server in servers])) as made:
        yield made


@pytest.fixture
def model(servers: list[PsServer]) -> Iterator[Embeddings]:
    with ExitStack() as closing_stores:

        def open_store(configs: Mapping[str, TableConfig]) -> PsStore:
            made = PsStore(configs, servers=[server.address for server in servers])
            closing_stores.callback(made.close)
            return made

        yield Embeddings({"ids": Slot(1, initializer=Zeros())}, Sgd(learning_rate=1.0), store=open_store)


@pytest.fixture
def torn(zygote: Zygote, servers: list[PsServer], model: Embeddings) -> None:
    """Worker 0 was killed when server 0 had its batches 0 and 1, and server 1 only batch 0."""
    store = model.store
    assert isinstance(store, PsStore)
    host, port, *_ = store.cluster.frame_address(1)
    proxy = Proxy((host, port))
    addresses = ",".join(server.address for server in servers)
    worker = zygote.start(WORKER, addresses, str(proxy.port), beside=True)
    try:
        for number in range(2):
            assert zygote.line() == "computed"
            if number == 1:
                proxy.keep()
            os.kill(worker, signal.SIGUSR1)
        wait_until(lambda: last_batches(store) == [1, 0])
    finally:
        zygote.end(worker)
        proxy.close()


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + ENDS_HANGS_SECONDS
    while not is_so():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.005)


def last_batches(store: PsStore, worker: int = 0) -> list[int]:
    """Of a worker, at each server."""
    return [
        answer.applied[worker] for answer in store.cluster.ask("Situation", messages.StoreRequest(store=store.name))
    ]


def push(session: WorkerSession, number: int, *, previous: int) -> None:
    stamp = BatchStamp(worker=session.worker, seq=number, position=str(number + 1).encode())
    plan = session.plan(IDS, torch.tensor([0, len(IDS)]), stamp=stamp)
    rule = Update(step=number, learning_rates=torch.ones(1), times=0, previous=previous)
    session.apply([(plan, plan.counts.float())], rule).result()


def counts(store: Store) -> list[float]:
    plan = store.plan(IDS, torch.tensor([0, len(IDS)]), stamp=BatchStamp(worker=0, seq=0))
    return (-store.read(plan, step=0).result().values[plan.inverse.long()]).tolist()


@pytest.mark.usefixtures("torn")
@pytest.mark.parametrize("is_stamped", [True, False], ids=["own-stamps", "counted"])
def test_a_worker_killed_between_two_servers_of_a_push_resumes_after_the_one_that_lacks_it(
    is_stamped: bool, model: Embeddings
) -> None:
    assert set(model.lookup("ids", IDS).flatten().tolist()) == {-1.0, -2.0}, (
        "one server lacks a batch that the other has"
    )
    session = model.join(0)
    assert session.applied is not None
    assert (session.applied.seq, session.applied.position, session.next_seq) == (0, b"1", 2)
    for number in (1, 2):
        stamp = BatchStamp(worker=0, seq=number) if is_stamped else None
        with BatchContext({"ids": IDS}, stamp=stamp) as turn:
            model(turn.features)["ids"].sum().backward()
        model.step()
        rows = model.lookup("ids", IDS).flatten()
        assert rows.tolist() == [-1.0 - number] * len(IDS), "a server that had the batch has it once"


@pytest.mark.usefixtures("torn")
def test_where_the_batch_differs_at_most_those_in_flight_are_wrong(model: Embeddings) -> None:
    others = IDS + 1000
    model.join(0)
    model({"ids": others})["ids"].sum().backward()
    model.step()
    old, new = (-model.lookup("ids", ids).flatten() for ids in (IDS, others))
    assert set(old.tolist()) == {1.0, 2.0}, "the first batch is everywhere, the torn one where it had come"
    assert set(new.tolist()) == {0.0, 1.0}, "the other one is where the torn one had not come"
    wrong = abs(float(old.sum() + new.sum()) - 2 * len(IDS))
    assert wrong <= len(IDS), "one batch was on its way"


def test_of_two_workers_under_one_number_the_older_is_refused_and_nothing_counts_twice(store: PsStore) -> None:
    older = store.join(5)
    push(older, 0, previous=-1)
    newer = store.join(5)
    for number in (0, 1):
        with pytest.raises(
            FailedPreconditionError, match=r"worker 5: this incarnation .* is over, a later one .* joined"
        ):
            push(older, number, previous=number - 1)
    push(newer, 0, previous=-1)
    assert counts(store) == [1.0] * len(IDS), "a push that was repeated counts once"
    push(newer, 1, previous=0)
    assert counts(store) == [2.0] * len(IDS)
