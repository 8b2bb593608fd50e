"""Tests of this folder leave no threads, processes and open files; many run on every engine of stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from contracts.device_store import DEVICE
from contracts.engines import StoreFactory, engine
from monolith.nn.table_defaults import TableDefaults, use_table_defaults
from monolith.tables import TableConfig
from monolith.tables.store import Store


@pytest.fixture(autouse=True)
def _clean(nothing_left_behind: None) -> None:
    """Every test here."""


@pytest.fixture(
    scope="session",
    params=[
        "local",
        "three servers here",
        "cuda on the processor",
        "reference",
        *(pytest.param(name, marks=pytest.mark.slow) for name in (*DEVICE, "pipe")),
    ],
)
def make_store(request: pytest.FixtureRequest) -> Iterator[StoreFactory]:
    """Builds a store of the engine under test."""
    with engine(request.param) as factory:
        yield factory


@pytest.fixture
def on_every_store(make_store: StoreFactory) -> Iterator[None]:
    """Models that are built in the test keep their rows in a store of the engine under test."""
    made: list[Store] = []

    def make(configs: Mapping[str, TableConfig]) -> Store:
        made.append(make_store(configs))
        return made[-1]

    with use_table_defaults(TableDefaults(store=make)):
        yield
    for store in made:
        store.close()
