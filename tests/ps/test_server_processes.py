"""Servers and clients as processes: what is left when one of them is killed."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from checkpoint.zygote import Zygote
from contracts.one_worker import ONE_TABLE, Worker, rows_of, rule
from monolith.errors import FailedPreconditionError, OpError
from monolith.ps import PsCluster, PsStore
from monolith.rpc.protos import parameter_server_pb2 as messages
from monolith.tables import snapshot
from monolith.testing.ps_cluster import create_test_ps_cluster
from ps.served import ServerProcess

CLIENT = """
import threading
from contracts.one_worker import ONE_TABLE
from monolith.ps import PsStore
store = PsStore(ONE_TABLE, servers=arguments[1:])
if arguments[0] == "cut":
    cut = store.cut()
else:
    held = store.cluster.held(60.0)
    held.__enter__()
print('"ready"', flush=True)
threading.Event().wait()
"""


@pytest.fixture(scope="module")
def servers(zygote: Zygote) -> Iterator[list[ServerProcess]]:
    started = [ServerProcess(zygote, (index, 2)) for index in range(2)]
    yield started
    for server in started:
        server.kill()


@pytest.fixture
def store(servers: list[ServerProcess]) -> Iterator[PsStore]:
    with PsCluster([server.addresses[0] for server in servers]) as cluster:
        store = PsStore(ONE_TABLE, servers=cluster)
        yield store
        store.close()
        cluster.ask("DropStore", messages.StoreRequest(store=store.name))


def client(zygote: Zygote, what: str, servers: list[ServerProcess]) -> int:
    """Another process that has a cut, or holds pushes; it is there when this returns."""
    started = zygote.start(CLIENT, what, *(server.addresses[0] for server in servers), beside=True)
    assert zygote.line() == "ready"
    return started


def test_a_client_that_is_killed_releases_its_cut(zygote: Zygote, servers: list[ServerProcess], store: PsStore) -> None:
    other = client(zygote, "cut", servers)
    with pytest.raises(FailedPreconditionError, match="a cut is open already"):
        store.cut()
    zygote.end(other)
    while True:
        try:
            store.cut().release()
        except FailedPreconditionError:
            time.sleep(0.01)  # the servers have not noticed yet
            continue
        break


def test_a_client_that_is_killed_lets_pushes_pass_again(
    zygote: Zygote, servers: list[ServerProcess], store: PsStore
) -> None:
    worker = Worker(store)
    other = client(zygote, "held", servers)
    began = time.monotonic()
    plan = worker.plan([1], 0)
    pending = worker.session.apply([(plan, torch.ones(plan.num_values))], rule(-1))
    assert not pending.done()
    zygote.end(other)
    pending.result(50)
    assert time.monotonic() - began < 50, "not by the end of the hold"
    assert rows_of(store, [1]) == [[-1.0, -1.0]]


def test_a_full_disk_at_a_save_leaves_no_files_and_the_next_save_works(
    servers: list[ServerProcess], store: PsStore, tmp_path: Path
) -> None:
    Worker(store).train(list(range(4000)))
    pid = servers[1].pid
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(OpError, match="parameter server 1 at"):
            snapshot.save(store, tmp_path / "saved")
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
    assert [path.name for path in (tmp_path / "saved").iterdir() if path.suffix == ".rows"] == []
    assert snapshot.save(store, tmp_path / "saved").rows == {"user": 4000}
    assert snapshot.restore(store, tmp_path / "saved").rows == {"user": 4000}


def test_a_server_that_is_paused_is_awaited(servers: list[ServerProcess], store: PsStore) -> None:
    worker = Worker(store)
    os.kill(servers[0].pid, signal.SIGSTOP)
    plan = worker.plan([1], 0)
    pending = worker.session.apply([(plan, torch.ones(plan.num_values))], rule(-1))
    os.kill(servers[0].pid, signal.SIGCONT)
    assert pending.result(60).updated == 1


@pytest.mark.slow
@pytest.mark.usefixtures("forked_starts")
def test_servers_end_with_the_process_that_started_them() -> None:
    program = """
import sys
from monolith.testing import create_test_ps_cluster
servers, config = create_test_ps_cluster(1)
print(servers[0].pid, flush=True)
sys.stdin.read()
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    os.kill(pid, 0)
    parent.kill()
    parent.communicate()
    while True:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            break
        if Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z":
            break  # it has ended; nobody collects it here
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_starts")
def test_a_client_can_ask_servers_to_end_and_they_end_well() -> None:
    with create_test_ps_cluster(1) as (started, config):
        with config.connect() as cluster:
            cluster.stop_servers(drain_seconds=1.0)
        assert started[0].wait() == 0
