"""What every test runs under: fixed examples for hypothesis, and the project's root as a fixture."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# Same examples in every run, so that a failure can be repeated; no deadline, because machines differ in speed and the
# time limit of a whole test is pytest's.
settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def project_root() -> Path:
    """The folder of the checkout."""
    return Path(__file__).resolve().parent.parent
