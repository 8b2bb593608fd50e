"""Versions whose files are no files, while a model answers: refused at once, and newer ones are taken up."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from monolith.serving import Predictor, version_watch
from serving.server.promoted_models import wait_until
from serving.small_models import make_batch, trained


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(trained(2).export(str(tmp_path_factory.mktemp("exported")), example=make_batch(0)))


def publish(exported: Path, folder: Path, version: int, *, pipe: str | None = None) -> None:
    """A version; one file of it, if it is named by a pattern, is a pipe that nobody writes to."""
    staged = folder / f"staged-{version}"
    shutil.copytree(exported, staged)
    manifest = json.loads((staged / "manifest.json").read_text())
    (staged / "manifest.json").write_text(json.dumps({**manifest, "version": version}))
    if pipe is not None:
        place = next(staged.glob(pipe))
        place.unlink()
        os.mkfifo(place)
    staged.rename(folder / str(version))


def test_pipes_in_the_place_of_files(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_watch, "POLL_SECONDS", 0.05)
    publish(exported, tmp_path, 1)
    with Predictor(str(tmp_path)) as predictor:
        pipes = ("weights.safetensors", "graph.*.json", "manifest.json", "rows/*/*.rows", "rows/*/manifest.json")
        for version, pipe in enumerate(pipes, start=2):
            publish(exported, tmp_path, version, pipe=pipe)
            wait_until(lambda: predictor.problem is not None)
            assert predictor.version.export == 1
            shutil.rmtree(tmp_path / str(version))
            wait_until(lambda: predictor.problem is None)
        publish(exported, tmp_path, 9)
        wait_until(lambda: predictor.version.export == 9)
