"""Stores of every engine, for tests that say what all of them do alike."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

# What tests of several folders share is imported by the name that mypy knows.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from contracts.device_store import DEVICE
from contracts.engines import RANKS, SERVERS, SERVERS_HERE, STORES, StoreFactory, engine
from monolith.tables import TableConfig
from monolith.tables.store import Store

collect_ignore = [] if DEVICE else ["test_device_rows.py"]
_ELSEWHERE = ("pipe", *SERVERS, *RANKS)
"""Engines that are in other processes: the full tier has them."""
_SHUFFLED = "cuda on the processor, shuffled"
"""Launches run in a new order each time: what depends on it is found by the full tier."""
_ON_A_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
_ENGINES = [
    *(name for name in (*STORES, *SERVERS_HERE) if name not in (*_ELSEWHERE, _SHUFFLED, "cuda")),
    pytest.param("cuda", marks=_ON_A_GPU),
    *(pytest.param(name, marks=pytest.mark.slow) for name in (_SHUFFLED, *_ELSEWHERE)),
]


@pytest.fixture(scope="session", params=_ENGINES)
def engine_name(request: pytest.FixtureRequest) -> str:
    """The engine under test."""
    return str(request.param)


@pytest.fixture(scope="session")
def make_store(engine_name: str, request: pytest.FixtureRequest) -> Iterator[StoreFactory]:
    """Builds a store of the engine under test."""
    with ExitStack() as running:
        with ExitStack() as starting:
            if engine_name in _ELSEWHERE:
                starting.enter_context(request.getfixturevalue("forking").forked_starts())
            factory = running.enter_context(engine(engine_name))
        yield factory


@pytest.fixture
def new_store(make_store: StoreFactory) -> Iterator[StoreFactory]:
    """Builds stores of the engine under test that are closed at the end of the test."""
    with ExitStack() as closed:

        def make(configs: Mapping[str, TableConfig]) -> Store:
            store = make_store(configs)
            closed.callback(store.close)
            return store

        yield make
