"""The engines that every contract is run on. A new engine is tested by one line here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pytest

from monolith.tables import LocalShards, LocalStore, TableConfig
from monolith.tables.store import Store
from monolith.testing.reference_store import ReferenceStore

# The float64 rules of the row optimizers are shared with tests/tables, by the name that mypy knows.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

StoreFactory: TypeAlias = Callable[[Mapping[str, TableConfig]], Store]

STORES: dict[str, StoreFactory] = {
    "reference": ReferenceStore,
    "local": LocalStore,
    "one shard": partial(LocalShards, num_shards=1),
    "three shards": partial(LocalShards, num_shards=3),
    "five shards": partial(LocalShards, num_shards=5),
}


@pytest.fixture(scope="session", params=list(STORES))
def make_store(request: pytest.FixtureRequest) -> StoreFactory:
    """Builds a store of the engine under test."""
    return STORES[request.param]
