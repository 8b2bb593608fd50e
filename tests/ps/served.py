"""Parameter servers for many tests: several clusters in one process, or each server in a process that can be killed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

from checkpoint.zygote import Zygote
from monolith.nn.table_defaults import TableDefaults, use_table_defaults
from monolith.ps import PsCluster, PsStore
from monolith.rpc.protos import parameter_server_pb2 as messages
from monolith.tables import TableConfig

_numbers = itertools.count()

_SERVERS = """
import json, threading
from monolith.ps import PsServer

numbers = [int(each) for each in arguments]
servers = [PsServer(index, num_ps=num_ps) for index, num_ps in zip(numbers[::2], numbers[1::2])]
print(json.dumps([server.address for server in servers]), flush=True)
threading.Event().wait()
"""


class ServerProcess:
    """A process with some servers, forked from one that has imported everything."""

    def __init__(self, zygote: Zygote, *places: tuple[int, int]) -> None:
        self._zygote = zygote
        self.pid = zygote.start(_SERVERS, *(str(number) for place in places for number in place), beside=True)
        self.addresses: list[str] = zygote.line()
        self._ended = False

    def kill(self) -> None:
        """Ends it without a word. Calling it again does nothing."""
        if not self._ended:
            self._ended = True
            self._zygote.end(self.pid)


class Served:
    """A store of its own on servers that are there already; the class of a store for whoever builds a model."""

    def __init__(self, cluster: PsCluster) -> None:
        self.cluster = cluster
        self.name = f"store {next(_numbers)}"
        self._made: list[PsStore] = []

    def __call__(self, configs: Mapping[str, TableConfig]) -> PsStore:
        """The store as one more client of this process sees it."""
        self._made.append(PsStore(configs, servers=self.cluster, name=self.name))
        return self._made[-1]

    def close(self) -> None:
        """Ends the clients, and has the servers forget the store."""
        for store in self._made:
            store.close()
        self.cluster.ask("DropStore", messages.StoreRequest(store=self.name))


@contextmanager
def served(cluster: PsCluster) -> Iterator[Served]:
    """Models that are built inside keep their rows in a new store on these servers, which forget it at the end."""
    with closing(Served(cluster)) as store, use_table_defaults(TableDefaults(store=store)):
        yield store
