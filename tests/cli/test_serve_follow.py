"""`monolith serve --follow`: what becomes of a server whose log vanishes, or runs ahead of it."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from monolith.deltalog import DeltaLog
from monolith.online import DeltaPublisher
from monolith.testing import ExampleTask, NumberedBatches
from monolith.train import Trainer
from serving.server.serving_process import serve_while

PATIENCE_SECONDS = 60.0
SMALL_SEGMENT_BYTES = 600


class Run:
    """A run that publishes to a log, which a server reaches by another name: that can be taken away."""

    def __init__(self, folder: Path) -> None:
        self.trainer = Trainer(ExampleTask())
        self.trainer.train(steps=2)
        assert self.trainer.state is not None
        self.state: Any = self.trainer.state
        batch: Any = NumberedBatches(num_batches=4).make(3)
        self.export = self.trainer.export(str(folder / "export"), example=batch)
        self.columns = {name: batch[name].tolist() for name in ("user", "item")}
        self.log = DeltaLog(folder / "real", segment_bytes=SMALL_SEGMENT_BYTES)
        self.place = folder / "log"
        self.publisher = DeltaPublisher(self.state.stores, self.log, dense=self._dense, dense_interval=1e-6)
        self.publisher.publish()
        self.show()

    def _dense(self) -> dict[str, torch.Tensor]:
        return {name: weight.data for name, weight in self.state.model.named_parameters()}

    def hide(self) -> None:
        self.place.unlink()

    def show(self) -> None:
        self.place.symlink_to(self.log.place)

    def learn(self, value: float) -> None:
        """Changes rows that are asked for, and says so."""
        (emb,) = self.state.embeddings.values()
        ids = torch.tensor(sorted(set(self.columns["user"])))
        width = emb.lookup("user", ids).shape[1]
        emb.assign("user", ids, torch.full((len(ids), width), value))
        self.publisher.publish()

    @property
    def arguments(self) -> list[str]:
        return ["serve", f"ranker={self.export}", "--follow", str(self.place), "--port", "0"]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    yield run
    run.publisher.close()


class Server:
    """How it is asked."""

    def __init__(self, place: dict[str, Any], columns: dict[str, Any]) -> None:
        self._url = f"http://127.0.0.1:{place['port']}"
        self._body = json.dumps({"inputs": columns}).encode()

    def readiness(self) -> tuple[int, str]:
        try:
            url = f"{self._url}/readyz"
            with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as response:  # noqa: S310 - our own server
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def predict(self) -> tuple[list[float], dict[str, Any]]:
        request = urllib.request.Request(f"{self._url}/v1/models/ranker:predict", self._body)  # noqa: S310 - our own
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:  # noqa: S310 - our own server
            return json.loads(response.read())["outputs"], json.loads(response.headers["x-model-version"])

    def wait_ready(self) -> None:
        wait_until(lambda: self.readiness()[0] == 200)

    def wait_not_ready(self, why: str) -> None:
        wait_until(lambda: self.readiness()[0] == 503 and why in self.readiness()[1])


def wait_until(is_so: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE_SECONDS / 0.02)):
        if is_so():
            return
        pause.wait(0.02)
    raise AssertionError("it did not come to pass")


@pytest.mark.slow
def test_a_vanished_log_is_reported_then_followed_again_while_serving_continues(run: Run) -> None:
    def ask(place: dict[str, Any]) -> None:
        server = Server(place, run.columns)
        server.wait_ready()
        before, version = server.predict()
        run.hide()
        server.wait_not_ready("the delta log cannot be followed")
        assert server.predict() == (before, version)
        run.learn(0.5)
        assert server.predict() == (before, version)
        run.show()
        server.wait_ready()
        wait_until(lambda: server.predict()[1]["dense"] > version["dense"])
        after, _ = server.predict()
        assert after != before

    assert serve_while(run.arguments, ask) == 0


@pytest.mark.slow
def test_a_server_that_lags_beyond_retention_keeps_serving_and_waits_for_a_base(run: Run) -> None:
    def ask(place: dict[str, Any]) -> None:
        server = Server(place, run.columns)
        server.wait_ready()
        before, version = server.predict()
        run.hide()
        server.wait_not_ready("the delta log cannot be followed")
        for number in range(8):
            run.learn(0.1 * number)
        run.log.save_base(run.state.stores, name="base", numbers=run.publisher.numbers)
        run.log.trim(keep_bases=1)
        run.log.remove_base("base")
        run.show()
        server.wait_not_ready("are missing")
        assert server.predict() == (before, version)
        run.log.save_base(run.state.stores, name="later", numbers=run.publisher.numbers)
        server.wait_ready()
        after, reached = server.predict()
        rows = {part: number for part, number in run.publisher.numbers.items() if part != "dense"}
        assert reached["sparse"] == rows
        assert after != before

    assert serve_while(run.arguments, ask) == 0


@pytest.mark.slow
def test_a_server_answers_from_the_export_before_there_is_a_log_and_is_not_ready_when_its_trainer_is_silent(
    run: Run,
) -> None:
    run.hide()

    def ask(place: dict[str, Any]) -> None:
        server = Server(place, run.columns)
        server.wait_not_ready("the delta log cannot be followed")
        assert server.predict()[1]["sparse"] == {}
        run.show()
        server.wait_not_ready("s old, at most 1 s expected: is the trainer running?")
        wait_until(lambda: server.predict()[1]["dense"] >= 0)

        def is_ready_again() -> bool:
            run.learn(0.5)
            return server.readiness()[0] == 200

        wait_until(is_ready_again)
        server.wait_not_ready("s old")

    assert serve_while([*run.arguments, "--max_staleness_seconds", "1"], ask) == 0
