"""No run, no variable of a launcher and nothing else of a test outlives it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from monolith import collective

VARIABLES = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "MONOLITH_WITH_BYTEPS",
    "MONOLITH_WITH_HOROVOD",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "RANK",
    "WORLD_SIZE",
)


@pytest.fixture(autouse=True)
def no_launcher(nothing_left_behind: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test starts without a launcher and without a run."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    collective.shutdown()
    yield
    collective.shutdown()
