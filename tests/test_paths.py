"""The length of the three paths of docs/design.md: through how many files of the package a reader follows each of them.

A batch until its rows have changed, a request until its answer, an increment from the publisher to the rows of a
server. Files that only wait, tell the time or touch the disk are not counted, nor is the reading of batches.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import monolith
from monolith.serving import Predictor
from monolith.serving.server import ModelRegistry, ModelServer
from monolith.testing import ExampleTask
from monolith.train import Session
from serving.server.promoted_models import Versions, wait_until
from serving.server.promoted_server import ONE

PACKAGE = Path(monolith.__file__).parent
NOT_COUNTED = ("background.py", "clock.py", "data/", "files/", "testing/")


class Passed:
    """The files of the package with a function that was called while `is_on`."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self.is_on = False

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        if self.is_on and event == "call":
            self._names.add(frame.f_code.co_filename)

    @property
    def files(self) -> list[str]:
        paths = (Path(name) for name in self._names)
        own = (path.relative_to(PACKAGE).as_posix() for path in paths if path.is_relative_to(PACKAGE))
        return sorted(path for path in own if not path.startswith(NOT_COUNTED))


@contextmanager
def profiled() -> Iterator[Passed]:
    """Yields what notes the calls of this thread, and of those that start meanwhile."""
    passed = Passed()
    threading.setprofile(passed.note)
    sys.setprofile(passed.note)
    try:
        yield passed
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def test_a_batch_passes_22_files_until_its_rows_have_changed() -> None:
    task = ExampleTask()
    with profiled() as passed, Session(task) as session, session.feed(task.input_fn("train")) as feed:
        session.run_next(feed)  # what only the first step does is not counted
        passed.is_on = True
        session.run_next(feed)
        passed.is_on = False
    assert "tables/local/plan.py" in passed.files
    assert len(passed.files) <= 22, passed.files


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Versions:
    versions = Versions(tmp_path_factory.mktemp("model"))
    versions.export(1, 1.0)
    return versions


@pytest.mark.slow
def test_a_request_passes_22_files_until_its_answer(versions: Versions) -> None:
    registry = ModelRegistry()
    with profiled() as passed:
        registry.add("ranker", Predictor(str(versions.folder / "1")))
        with ModelServer(registry) as server:
            connection = http.client.HTTPConnection("127.0.0.1", server.port or 0, timeout=120)

            def ask() -> int:
                connection.request("POST", "/v1/models/ranker:predict", json.dumps(ONE))
                with connection.getresponse() as response:
                    response.read()
                    return response.status

            assert ask() == 200
            passed.is_on = True
            assert ask() == 200
            passed.is_on = False
            connection.close()
    registry.close()
    assert "serving/loaded_model.py" in passed.files
    assert len(passed.files) <= 22, passed.files


@pytest.mark.slow
def test_an_increment_passes_20_files_from_the_publisher_to_a_server(versions: Versions, tmp_path: Path) -> None:
    log = tmp_path / "log"
    publisher = versions.publisher(log)
    publisher.publish()
    with profiled() as passed, Predictor(str(versions.folder / "1"), follow=str(log)) as predictor:
        predictor.wait_ready(60.0)

        def is_later(before: int) -> bool:
            return predictor.version.dense > before

        for value in (1.0, 2.0):
            before = predictor.version.dense
            versions.set_rows(value)
            versions.set_slope(value)
            passed.is_on = True
            publisher.publish()
            wait_until(partial(is_later, before))
            passed.is_on = False
    publisher.close()
    assert {"deltalog/publish/publisher.py", "deltalog/follow/log_applier.py"} <= set(passed.files)
    assert len(passed.files) <= 20, passed.files
