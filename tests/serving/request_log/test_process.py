"""A process of ``monolith serve`` with a request log: its disk fills up, it is killed, and the log can be read."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import resource
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monolith.serving.request_log import read_requests
from monolith.testing import ExampleTask
from monolith.train import Trainer
from online.joiner.places import wait_for


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    trainer = Trainer(ExampleTask())
    trainer.train(steps=2)
    path = tmp_path_factory.mktemp("served") / "export"
    trainer.export(str(path), example=ExampleTask().input_fn("train").make(0))
    return path


class ServerProcess:
    """A running server, and how it is asked."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.place: dict[str, Any] = json.loads(process.stdout.readline())
        self.connection = http.client.HTTPConnection("127.0.0.1", self.place["port"], timeout=120)

    def ask(self, request_id: str, examples: int = 20) -> int:
        body = json.dumps({"inputs": {"user": [7], "item": list(range(examples))}})
        self.connection.request("POST", "/v1/models/ranker:predict", body, {"x-request-id": request_id})
        response = self.connection.getresponse()
        response.read()
        return response.status

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.place['metrics_port']}/metrics", timeout=120) as answer:
            found = re.findall(rf"^\w*{name}(?:_total)?(?:{{.*}})? (\S+)$", answer.read().decode(), re.MULTILINE)
        return sum(map(float, found))


@contextlib.contextmanager
def serving(export: Path, log: Path) -> Iterator[ServerProcess]:
    options = ["--port", "0", "--metrics_port", "0", "--request_log", str(log), "--request_log_share", "1", "--json"]
    command = [sys.executable, "-m", "monolith", "serve", f"ranker={export}", *options, "--request_log_item", "item"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        server = ServerProcess(process)
        with contextlib.closing(server.connection):
            yield server
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.usefixtures("forked_starts")
def test_a_server_with_a_full_disk_that_is_killed_answers_all_and_keeps_intact_records(
    export: Path, tmp_path: Path
) -> None:
    with serving(export, tmp_path) as server:
        assert server.ask("before") == 200
        wait_for(lambda: server.metric("request_log_records") == 20)
        pid = server.process.pid
        unlimited = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (8000, unlimited[1]))
        for number in range(5):
            assert server.ask(f"full-{number}") == 200
        wait_for(lambda: server.metric("request_log_dropped") >= 60)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)
        assert server.ask("after") == 200
        lost = server.metric("request_log_dropped")
        wait_for(lambda: server.metric("request_log_records") + lost == 140)
        for number in range(50):
            assert server.ask(f"killed-{number}") == 200
        server.process.kill()
        server.process.wait()
    (file,) = tmp_path.iterdir()
    with file.open("ab") as torn:
        torn.write(file.read_bytes()[:100])  # as a kill within a write leaves it
    logged = {each.request_id: len(each.examples) for each in read_requests(str(tmp_path))}
    assert {b"before", b"after"} <= logged.keys()
    assert sum(name.startswith(b"full") for name in logged) == 5 - lost // 20
    assert set(logged.values()) == {20}
