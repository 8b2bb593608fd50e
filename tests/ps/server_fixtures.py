"""Servers of this process, and a store over them, for tests of what goes between the two."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from contracts.one_worker import ONE_TABLE
from monolith.ps import PsCluster, PsServer, PsStore
from monolith.tables import TableConfig


@contextmanager
def running(num_ps: int, *, token: str | None = None) -> Iterator[list[PsServer]]:
    """Servers that end with the test."""
    with ExitStack() as ended:
        yield [ended.enter_context(PsServer(index, num_ps, token=token)) for index in range(num_ps)]


@contextmanager
def cluster_here(num_ps: int) -> Iterator[PsCluster]:
    """A client of servers in the test process. Tests may share it: no call starts a further thread."""
    with running(num_ps) as servers, PsCluster([server.address for server in servers]) as cluster:
        for server in servers:
            threads = server._control._threads
            all_started = threading.Barrier(threads._max_workers)
            for started in [threads.submit(all_started.wait) for _ in range(all_started.parties)]:
                started.result()
        yield cluster


@contextmanager
def store_of(
    servers: list[PsServer], tables: Mapping[str, TableConfig] = ONE_TABLE, *, timeout_seconds: float = 60.0
) -> Iterator[PsStore]:
    """A store, by default of one table."""
    addresses = [server.address for server in servers]
    with PsCluster(addresses, timeout_seconds=timeout_seconds) as cluster:
        store = PsStore(tables, servers=cluster)
        try:
            yield store
        finally:
            store.close()
