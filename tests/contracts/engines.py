"""The engines that every contract is run on. A new engine is tested by one line here."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, settings

from contracts.device_store import DEVICE, DeviceStore
from contracts.pipe_store import PipeHost, PipeStore
from contracts.rank_processes import rank_processes
from hooks.server.certificates import make_certificate
from monolith import _core
from monolith.ps import PsCluster, PsStore
from monolith.rpc.protos import parameter_server_pb2 as messages
from monolith.tables import CudaStore, DeviceSizes, LocalStore, Segment, ServingRows, TableConfig
from monolith.tables.store import Store
from monolith.testing import create_test_ps_cluster
from monolith.testing.reference_store import ReferenceStore
from ps.server_fixtures import cluster_here

StoreFactory = Callable[[Mapping[str, TableConfig]], Store]

STORES: dict[str, StoreFactory] = {
    "reference": ReferenceStore,
    "local": LocalStore,
    "pipe": PipeStore,
    "cuda on the processor": partial(CudaStore, device="cpu", sizes=DeviceSizes(chunk_bits=4, segment_bits=2)),
    "cuda on the processor, shuffled": lambda configs: CudaStore(
        configs,
        device="cpu",
        sizes=DeviceSizes(chunk_bits=3, segment_bits=1),
        launcher=_core.DeviceLauncher.on_cpu(shuffled=True),
    ),
    "cuda": partial(CudaStore, device="cuda"),
    **dict.fromkeys(DEVICE, DeviceStore),
}
ServingFactory = Callable[[Mapping[str, TableConfig]], ServingRows]
SERVING: dict[str, ServingFactory] = {"local": LocalStore, **dict.fromkeys(DEVICE, DeviceStore)}
"""Engines that can be served."""
SERVERS_HERE = {"three servers here": 3}
"""Engines that are parameter servers in this process, and how many. Three divide the 1024 buckets unevenly."""
SERVERS = {"three servers over TLS": 3}
"""Engines that are parameter servers in processes of their own, and how many; those here do without TLS."""
RANKS = {"three ranks": 3}
"""Engines that are ranks of a synchronous run, and how many."""
_SHARE_OF_EXAMPLES = 1 / 6
"""Of random programs, for engines that take longer, such as those behind connections: there each takes a second."""


def examples(name: str, *, most: int) -> settings:
    """How many random programs an engine runs; machines differ in speed, so none is too slow."""
    takes_longer = name in {"device", "pipe", *SERVERS_HERE, *SERVERS, *RANKS}
    number = round(_SHARE_OF_EXAMPLES * most) if takes_longer else most
    return settings(max_examples=number, suppress_health_check=[HealthCheck.too_slow])


class ServedStore(PsStore):
    """A store of its own on servers that are there already, which forget it when it is closed."""

    _numbers = itertools.count()

    def __init__(self, configs: Mapping[str, TableConfig], *, cluster: PsCluster) -> None:
        super().__init__(configs, servers=cluster, name=f"store {next(self._numbers)}")

    def close(self) -> None:
        super().close()
        self.cluster.ask("DropStore", messages.StoreRequest(store=self.name))


@contextmanager
def _cluster(name: str) -> Iterator[PsCluster]:
    if name in SERVERS_HERE:
        with cluster_here(SERVERS_HERE[name]) as cluster:
            yield cluster
        return
    with ExitStack() as ended:
        options: dict[str, Path] = {}
        if name.endswith("TLS"):
            made = make_certificate(Path(ended.enter_context(TemporaryDirectory())), "server")
            options = {"tls_certificate": made.certificate, "tls_key": made.key}
        _, config = ended.enter_context(create_test_ps_cluster(SERVERS[name], **options))
        yield ended.enter_context(config.connect())


@contextmanager
def engine(name: str) -> Iterator[StoreFactory]:
    """Builds stores of one engine; those that are in another process share one, which takes seconds to start."""
    if name in {*SERVERS_HERE, *SERVERS}:
        with _cluster(name) as cluster:
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


@contextmanager
def stores_of(name: str) -> Iterator[StoreFactory]:
    """Builds stores of one engine, which are closed at the end."""
    with engine(name) as factory, ExitStack() as closed:

        def make(configs: Mapping[str, TableConfig]) -> Store:
            store = factory(configs)
            closed.callback(store.close)
            return store

        yield make
