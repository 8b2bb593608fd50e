"""The engines that every contract is run on. A new engine is tested by one line here."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, settings

from contracts.pipe_store import PipeHost, PipeStore
from contracts.rank_processes import rank_processes
from hooks.server.certificates import make_certificate
from monolith.ps import PsCluster, PsStore
from monolith.tables import LocalShards, LocalStore, Segment, TableConfig
from monolith.tables.store import Store
from monolith.testing import create_test_ps_cluster
from monolith.testing.ps_cluster import PsProcesses
from monolith.testing.reference_store import ReferenceStore

StoreFactory = Callable[[Mapping[str, TableConfig]], Store]

STORES: dict[str, StoreFactory] = {
    "reference": ReferenceStore,
    "local": LocalStore,
    "one shard": partial(LocalShards, num_shards=1),
    "three shards": partial(LocalShards, num_shards=3),
    "pipe": PipeStore,
}
SERVERS = {"one server": 1, "three servers": 3, "two servers over TLS": 2}
"""Engines that are parameter servers, and how many. Three divide the 1024 buckets unevenly."""
RANKS = {"three ranks": 3}
"""Engines that are ranks of a synchronous run, and how many."""
_SHARE_OF_EXAMPLES = 1 / 3
"""Of random programs, for engines that are in other processes: all run the same ones, and there each takes a second."""


def examples(name: str, *, most: int) -> settings:
    """How many random programs an engine runs; machines differ in speed, so none is too slow."""
    is_elsewhere = name in SERVERS or name in RANKS
    number = round(_SHARE_OF_EXAMPLES * most) if is_elsewhere else most
    return settings(max_examples=number, suppress_health_check=[HealthCheck.too_slow])


class ServedStore(PsStore):
    """A store of its own on servers that are there already, which forget it when it is closed."""

    _numbers = itertools.count()

    def __init__(self, configs: Mapping[str, TableConfig], *, cluster: PsCluster) -> None:
        super().__init__(configs, servers=cluster, name=f"store {next(self._numbers)}")

    def close(self) -> None:
        super().close()
        self.cluster.drop_store(self.name)


@contextmanager
def _servers(name: str) -> Iterator[PsProcesses]:
    with ExitStack() as ended:
        options: dict[str, Path] = {}
        if name.endswith("TLS"):
            made = make_certificate(Path(ended.enter_context(TemporaryDirectory())), "server")
            options = {"tls_certificate": made.certificate, "tls_key": made.key}
        yield ended.enter_context(create_test_ps_cluster(SERVERS[name], **options))


@contextmanager
def engine(name: str) -> Iterator[StoreFactory]:
    """Builds stores of one engine; those that are in another process share one, which takes seconds to start."""
    if name in SERVERS:
        with _servers(name) as (_, config), config.connect() as cluster:
            # What a cluster has for good, such as the way through TLS, is there before the first test looks.
            first = ServedStore({"first": TableConfig([Segment(1)])}, cluster=cluster)
            first.join(worker=0)
            first.close()
            yield partial(ServedStore, cluster=cluster)
        return
    if name in RANKS:
        with rank_processes(RANKS[name]) as factory:
            yield factory
        return
    if name != "pipe":
        yield STORES[name]
        return
    with closing(PipeHost()) as host:
        yield partial(PipeStore, host=host)
