"""`monolith serve`: what it serves, and what it says of wrong arguments."""

from __future__ import annotations

import json
import re
import shlex
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch

from monolith.cli import main
from monolith.serving import Predictor
from monolith.testing import ExampleTask, NumberedBatches
from monolith.train import Trainer
from serving.server.serving_process import serve_while

PAGE = "serve.md"


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    trainer = Trainer(ExampleTask())
    trainer.train(steps=5)
    return trainer


@pytest.fixture(scope="module")
def export(trainer: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served") / "export"
    trainer.export(str(path), example=NumberedBatches(num_batches=4).make(0))
    return path


def get(url: str, body: Any = None, token: str | None = None) -> Any:
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode())  # noqa: S310 - our own
    if token is not None:
        request.add_header("authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=120) as response:  # noqa: S310 - our own server
        return json.loads(response.read())


def test_an_export_answers_as_the_predictor_does(export: Path, trainer: Trainer) -> None:
    batch: Any = NumberedBatches(num_batches=4).make(3)
    columns = {name: batch[name].tolist() for name in ("user", "item")}
    with Predictor(str(export)) as predictor:
        wanted = predictor.predict(columns).outputs["predictions"]
    answers: list[Any] = []

    def ask(place: dict[str, Any]) -> None:
        assert [model["name"] for model in place["models"]] == ["ranker"]
        url = f"http://127.0.0.1:{place['port']}/v1/models/ranker:predict"
        answers.append(get(url, {"inputs": columns})["outputs"])
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        answers.append(get(url, {"instances": rows})["predictions"])

    arguments = ["serve", f"ranker={export}", "--port", "0", "--grpc_port", "0", "--metrics_port", "0"]
    assert serve_while(arguments, ask) == 0
    assert [torch.equal(torch.tensor(answer), wanted) for answer in answers] == [True, True]
    assert torch.allclose(wanted, trainer.predict(batch), atol=1e-3)


def test_a_model_has_the_name_of_its_task_and_a_token_may_be_required(export: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("sesame\n")

    def ask(place: dict[str, Any]) -> None:
        (model,) = place["models"]
        url = f"http://127.0.0.1:{place['port']}/v1/models/{model['name']}"
        with pytest.raises(urllib.request.HTTPError, match="401"):
            get(url)
        assert get(url, token=secret.read_text().strip())["model_version_status"][0]["version"] == str(model["version"])

    assert serve_while(["serve", str(export), "--port", "0", "--token_file", str(secret)], ask) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "nowhere"),
        (["a=one", "b=two", "--follow", "log"], "--follow: there are several models; write --follow NAME=log"),
        (["a="], "a model is written NAME=PATH, got 'a='"),
        (["one", "--follow", "x", "--follow", "y"], "--follow: a model has one, got another one: y"),
        (["EXPORT", "--request_log_share", "0.1"], "--request_log_share is for a log of requests; give its place"),
        (["EXPORT", "--request_log", "log", "--request_log_share", "2"], "share must be above 0 and at most 1, got 2"),
        (["EXPORT", "--request_log", "s3://log"], "place must be a folder of this machine or kafka://HOST:PORT/TOPIC"),
        (["EXPORT", "--request_log", "kafka://broker"], "a topic is written kafka://HOST:PORT[,HOST:PORT]/TOPIC"),
        (["EXPORT", "--request_log", "/proc/log"], "'/proc/log': cannot be written"),
        (["EXPORT", "--request_log", "log", "--request_log_kafka", "a=b"], "kafka has settings, but 'log' is no topic"),
        (["EXPORT", "--request_log", "log", "--request_log_item", "price"], "no column 'price'; it reads item, user"),
    ],
)
def test_wrong_arguments_are_one_line(
    export: Path,
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [str(export) if each == "EXPORT" else each for each in arguments]
    assert main(["serve", *given, "--port", "0"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("monolith serve: error: ")
    assert sentence in told
    assert told.count("\n") == 1


@pytest.mark.slow
def test_the_page_runs(
    project_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (project_root / "docs" / "how-to" / PAGE).read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```(python|bash|console)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert [kind for kind, _ in blocks] == ["python", "bash", "console", "python", "python"]
    exec(compile(blocks[0][1], PAGE, "exec"), {"__name__": "how_to"})  # noqa: S102 - what the reader runs
    client: dict[str, Any] = {}
    exec(compile(blocks[3][1], PAGE, "exec"), client)  # noqa: S102 - the same
    asked: list[Any] = []
    by_grpc: list[torch.Tensor] = []

    def ask(place: dict[str, Any]) -> None:
        by_grpc.append(client["ask"](f"127.0.0.1:{place['grpc_port']}"))
        for line in blocks[2][1].splitlines():
            if line.startswith("$ "):
                _, _, body, url = shlex.split(line[2:])
                asked.append(get(url.replace("8501", str(place["port"])), json.loads(body)))

    command = re.sub(r"_port \d+|port \d+", lambda found: found[0].split()[0] + " 0", blocks[1][1])
    assert serve_while(shlex.split(command)[1:], ask) == 0
    assert [list(each) for each in asked] == [["predictions"], ["outputs"]]
    assert [len(each) for answer in asked for each in answer.values()] == [2, 2]
    assert torch.allclose(by_grpc[0], torch.tensor(asked[0]["predictions"]))
    exec(compile(blocks[4][1], PAGE, "exec"), {"__name__": "how_to"})  # noqa: S102 - what the reader runs
    assert "True True" in capsys.readouterr().out


def test_every_metric_and_option_is_on_the_page(project_root: Path) -> None:
    text = (project_root / "docs" / "how-to" / PAGE).read_text(encoding="utf-8")
    root = project_root / "src" / "monolith"
    sources = ("server/metrics.py", "request_log/log.py")
    emitted = re.findall(r'emit_\w+\(\s*"(\w+)"', "".join((root / "serving" / each).read_text() for each in sources))
    assert len(emitted) > 15
    assert [name for name in emitted if f"`{name}`" not in text] == []
    text += (project_root / "docs" / "how-to" / "shards.md").read_text(encoding="utf-8")
    described = "".join((root / "cli" / "_arguments" / name).read_text() for name in ("serve.py",))
    options = re.findall(r'"(--\w+)",\s+(?:type|metavar|choices)', described)
    assert len(options) > 30
    shown = {"--host", "--port", "--tls_client_ca"}
    assert [name for name in options if f"{name}" not in text and name not in shown] == []
