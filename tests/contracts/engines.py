"""The engines that every contract is run on. A new engine is tested by one line here."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial

from contracts.pipe_store import PipeHost, PipeStore
from monolith.ps import PsCluster, PsStore
from monolith.tables import LocalShards, LocalStore, TableConfig
from monolith.tables.store import Store
from monolith.testing import create_test_ps_cluster
from monolith.testing.reference_store import ReferenceStore

StoreFactory = Callable[[Mapping[str, TableConfig]], Store]

STORES: dict[str, StoreFactory] = {
    "reference": ReferenceStore,
    "local": LocalStore,
    "one shard": partial(LocalShards, num_shards=1),
    "three shards": partial(LocalShards, num_shards=3),
    "five shards": partial(LocalShards, num_shards=5),
    "pipe": PipeStore,
}
SERVERS = {"one server": 1, "three servers": 3, "five servers": 5}
"""Engines that are parameter servers, and how many."""


class ServedStore(PsStore):
    """A store of its own on servers that are there already, which forget it when it is closed."""

    _numbers = itertools.count()

    def __init__(self, configs: Mapping[str, TableConfig], *, cluster: PsCluster) -> None:
        super().__init__(configs, servers=cluster, name=f"store {next(self._numbers)}")

    def close(self) -> None:
        super().close()
        self.cluster.drop_store(self.name)


@contextmanager
def engine(name: str) -> Iterator[StoreFactory]:
    """Builds stores of one engine; those that are in another process share one, which takes seconds to start."""
    if name in SERVERS:
        with create_test_ps_cluster(SERVERS[name]) as (_, config), config.connect() as cluster:
            yield partial(ServedStore, cluster=cluster)
        return
    if name != "pipe":
        yield STORES[name]
        return
    with closing(PipeHost()) as host:
        yield partial(PipeStore, host=host)
