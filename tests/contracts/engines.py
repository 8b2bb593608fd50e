"""The engines that every contract is run on. A new engine is tested by one line here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial

from contracts.pipe_store import PipeHost, PipeStore
from monolith.tables import LocalShards, LocalStore, TableConfig
from monolith.tables.store import Store
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


@contextmanager
def engine(name: str) -> Iterator[StoreFactory]:
    """Builds stores of one engine; those that are in another process share one, which takes seconds to start."""
    if name != "pipe":
        yield STORES[name]
        return
    with closing(PipeHost()) as host:
        yield partial(PipeStore, host=host)
