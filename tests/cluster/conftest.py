"""What tests of the cluster run under: nothing of the machine's own scheduler, and nothing left behind."""

from __future__ import annotations

import socket

import pytest

from monolith import environment

_PREFIXES = ("CLOUDNATIVE_", "YARN_", "MY_", "MLP_", "MPI_", "OMPI_", "PRIMUS_", "CONSUL_", "TCE_", "ZK_", "TF_CONFIG")


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(nothing_left_behind: None) -> None:
    """Every test here cleans up after itself."""


@pytest.fixture(autouse=True)
def _no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever started the tests is not asked for addresses."""
    for name in environment.starting_with(*_PREFIXES):
        monkeypatch.delenv(name)


@pytest.fixture
def unused_address() -> str:
    """An address of this machine where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"
