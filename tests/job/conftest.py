"""A process from which the tests of this folder start theirs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from checkpoint.zygote import Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """Forks processes that need not import anything."""
    with Zygote() as process:
        yield process
