"""Nothing of a test outlives it: no thread, process, socket or file, and no handler or variable."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def clean_end(nothing_left_behind: None) -> None:
    """Every test here is held to it."""
