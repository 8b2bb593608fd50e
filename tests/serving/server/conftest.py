"""Versions of a model in a folder, and servers of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monolith.serving import version_watch
from serving.server.promoted_models import Versions
from serving.server.promoted_server import SLOPES, Served


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("promoted")
    versions = Versions(folder)
    for version, slope in SLOPES.items():
        versions.export(version, slope)
    return folder


@pytest.fixture
def folder(exports: Path, tmp_path: Path) -> Path:
    """With versions 1 and 2; version 3 comes by `publish`."""
    for version in (1, 2):
        shutil.copytree(exports / str(version), tmp_path / "model" / str(version))
    return tmp_path / "model"


@pytest.fixture
def serve(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Served]]:
    monkeypatch.setattr(version_watch, "POLL_SECONDS", 0.02)
    made: list[Served] = []

    def start(path: Path = folder, **options: Any) -> Served:
        made.append(Served(path, **options))
        return made[-1]

    yield start
    for each in made:
        each.close()
