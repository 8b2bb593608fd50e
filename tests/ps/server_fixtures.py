"""Servers of this process, and a store over them, for tests of what goes between the two."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from contracts.one_worker import ONE_TABLE
from monolith.ps import PsCluster, PsServer, PsStore


@contextmanager
def running(num_ps: int, *, token: str | None = None) -> Iterator[list[PsServer]]:
    """Servers that end with the test."""
    with ExitStack() as ended:
        yield [ended.enter_context(PsServer(index, num_ps, token=token)) for index in range(num_ps)]


@contextmanager
def store_of(servers: list[PsServer], *, timeout_seconds: float = 60.0) -> Iterator[PsStore]:
    """A store of one table."""
    addresses = [server.address for server in servers]
    with PsCluster(addresses, timeout_seconds=timeout_seconds) as cluster:
        store = PsStore(ONE_TABLE, servers=cluster)
        try:
            yield store
        finally:
            store.close()
