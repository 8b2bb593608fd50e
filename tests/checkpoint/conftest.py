"""Tests of this folder leave no threads and no open files."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _clean(nothing_left_behind: None) -> None:
    """Every test here."""
