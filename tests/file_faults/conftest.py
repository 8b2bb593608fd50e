"""A library that stands between a process and its files, and a quick place for them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from file_faults.operations import build, preload
from forked_starts import ForkingProcess


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, compiled."""
    return build(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="session")
def watching(library: Path) -> Iterator[ForkingProcess]:
    """Forks programs that have the library."""
    with ForkingProcess.started(**preload(library)) as process:
        yield process


@pytest.fixture
def watched_starts(watching: ForkingProcess) -> Iterator[None]:
    """Programs that the test starts with the library are forks."""
    with watching.forked_starts():
        yield


@pytest.fixture
def quick_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: nothing here depends on a disk."""
    memory = Path("/dev/shm")  # noqa: S108 - a folder of its own is made in it
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="file-faults-") as folder:
        yield Path(folder)
