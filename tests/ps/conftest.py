"""Servers that the tests of this folder share, each test with stores of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import pytest

from checkpoint.zygote import Zygote
from monolith.ps import PsCluster
from monolith.ps.client import connections
from ps.served import ServerProcess

SIZES = (1, 2, 3, 5)


@pytest.fixture(scope="session")
def clusters(zygote: Zygote) -> Iterator[Mapping[int, PsCluster]]:
    """Number of servers -> a cluster of so many; all of them are in one process."""
    places = [(index, num_ps) for num_ps in SIZES for index in range(num_ps)]
    process = ServerProcess(zygote, *places)
    addresses = iter(process.addresses)
    with ExitStack() as closing:
        closing.callback(process.kill)
        yield {num_ps: closing.enter_context(PsCluster([next(addresses) for _ in range(num_ps)])) for num_ps in SIZES}


@pytest.fixture
def short_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hold does not wait long for pushes that servers lack, where the test knows that they never come."""
    monkeypatch.setattr(connections, "_LEVEL_SECONDS", 0.01)
