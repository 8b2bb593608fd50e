"""`monolith skew`: none where serving and training agree, and every planted one."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch

from monolith.cli import main
from monolith.data.batch import Batch
from monolith.export.writer import ExportConfig
from monolith.serving import Predictor
from monolith.serving.request_log import AnsweredRequest, RequestLog, RequestLogConfig
from monolith.serving.served_model import ModelVersion
from monolith.train import Spec, Trainer, TrainerConfig
from serving.server.serving_process import serve_while
from serving.small_models import Ranker, make_batch

TASK = "serving.small_models:Ranker"
OTHER_TASK = "cli.test_skew:OtherPrices"


class OtherPrices(Ranker):
    """Prices in cents where training has them in units."""

    def model_fn(self, features: Any, mode: Any) -> Spec:
        columns = {name: features[name] for name in features}
        columns["price"] = columns["price"] * 100
        return super().model_fn(Batch(columns, num_rows=features.num_rows), mode)


class Run:
    """A trained run, its export, and the log of a server that answered from it."""

    def __init__(self, folder: Path) -> None:
        self.model_dir, self.export, self.log = (str(folder / name) for name in ("model", "export", "log"))
        torch.manual_seed(0)
        trainer = Trainer(Ranker, TrainerConfig(model_dir=self.model_dir))
        trainer.train(steps=5)
        self.first = _exported(trainer, self.export, version=1)
        self._serve()
        trainer.train(steps=5)
        self.second = _exported(trainer, self.export, version=2)
        self.trainer = trainer

    def _serve(self) -> None:
        """Requests over HTTP, as rows and as columns, to the server of the command."""

        def ask(place: dict[str, Any]) -> None:
            url = f"http://127.0.0.1:{place['port']}/v1/models/ranker:predict"
            for number in range(5):
                batch = make_batch(number)
                body = {"inputs": {name: _values(batch[name]) for name in batch if name != "label"}}
                asked = urllib.request.Request(url, json.dumps(body).encode(), {"x-request-id": f"request-{number}"})
                urllib.request.urlopen(asked, timeout=120).close()  # noqa: S310 - our own server

        options = ["--port", "0", "--request_log", self.log, "--request_log_share", "1"]
        assert serve_while(["serve", f"ranker={self.export}", *options], ask) == 0


def _values(column: Any) -> Any:
    return column.to_lists() if hasattr(column, "to_lists") else column.tolist()


def _exported(trainer: Trainer, path: str, version: int) -> str:
    return trainer.export(path, example=make_batch(0), options=ExportConfig(version=version))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("run"))


def _log(folder: Path, export: str, *, version: ModelVersion | None = None, **changes: Any) -> str:
    """Requests that a predictor answered, in a log of their own; `changes` are made to columns before it is asked."""
    place = str(folder / "log")
    log = RequestLog(RequestLogConfig(place=place, share=1.0))
    with Predictor(export) as predictor:
        signature = predictor.signatures["serving_default"]
        for number in range(3):
            batch = make_batch(number)
            asked: dict[str, Any] = {name: batch[name] for name in signature.inputs}
            answer = predictor.predict({name: changes.get(name, lambda each: each)(asked[name]) for name in asked})
            log.answered(
                AnsweredRequest(
                    *(b"r%d" % number, "ranker", "serving_default", signature.inputs, asked, 16),
                    *(answer.outputs, version or answer.version),
                )
            )
    log.close()
    return place


def _skew(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["skew", *arguments, "--json"]) == status
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def _trained(run: Run, task: str = TASK) -> list[str]:
    return ["--export", run.export, "--task", task, "--model_dir", run.model_dir]


def test_none_is_found_where_serving_answers_as_training_does(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--export", run.export], ["--export", run.first], _trained(run)):
        found = _skew(capsys, run.log, *arguments, "--fail_above", "0", "--tolerance", "0")
        (version,) = found["versions"]
        assert (version["version"], version["step"]) == (1, 5)
        assert (version["requests"], version["examples"], version["equal"]) == (5, 80, 80)
        assert found["differences"] == []


def test_the_checkpoint_is_that_of_the_version_and_not_the_newest(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = _log(tmp_path, run.second)
    found = _skew(capsys, str(Path(run.log) / "*"), *_trained(run))
    assert [each["step"] for each in found["versions"]] == [5]
    found = _skew(capsys, log, *_trained(run), "--fail_above", "0")
    assert [(each["step"], each["equal"]) for each in found["versions"]] == [(10, 48)]


def test_a_feature_that_serving_transforms_in_another_way_is_found(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    found = _skew(capsys, run.log, *_trained(run, OTHER_TASK), "--fail_above", "0.5", "--show", "3", status=1)
    assert found["differing"] > 40
    largest = found["differences"]
    assert len(largest) == 3
    sizes = [abs(each["logged"] - each["replayed"]) for each in largest]
    assert sizes == sorted(sizes, reverse=True)
    asked = make_batch(int(largest[0]["request_id"].removeprefix("request-")))
    assert largest[0]["features"]["price"] == asked["price"][largest[0]["example"]].tolist()
    assert set(largest[0]["features"]) == {"user", "item", "tags", "price", "ages"}


def test_a_stale_row_is_found_and_no_other_row_is_blamed(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    users: Any = [make_batch(number)["user"] for number in range(3)]
    stale = int(users[0][3])

    def of_nobody(users: torch.Tensor) -> torch.Tensor:
        return torch.where(users == stale, 10**9, users)  # a server that lost the row answers as for an unknown id

    log = _log(tmp_path, run.second, user=of_nobody)
    found = _skew(capsys, log, *_trained(run), "--show", "100", "--fail_above", "0", status=1)
    wanted = [
        (f"r{number}", row) for number in range(3) for row, user in enumerate(users[number].tolist()) if user == stale
    ]
    assert sorted((each["request_id"], each["example"]) for each in found["differences"]) == wanted
    assert found["versions"][0]["equal"] == 48 - len(wanted)


@pytest.mark.slow
def test_what_cannot_be_reproduced_is_no_skew(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, version in {
        "moved": ModelVersion(2, -1, {"part": 4}),
        "dense": ModelVersion(2, 3, {}),
        "unknown": ModelVersion(99, -1, {}),
    }.items():
        log = _log(tmp_path / name, run.second, version=version, price=lambda prices: prices * 2)
        found = _skew(capsys, log, *_trained(run), "--fail_above", "0", status=1)
        assert (found["examples"], found["differing"]) == (0, 0)
        ((reason, count),) = found["not_compared"].items()
        assert count == 48
        assert ("version 99" if name == "unknown" else "delta log") in reason
        assert _skew(capsys, log, *_trained(run))["examples"] == 0


def test_a_deleted_checkpoint_is_no_skew(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = Trainer(Ranker, TrainerConfig(model_dir=str(tmp_path / "other")))
    other.train(steps=1)
    found = _skew(capsys, run.log, "--export", run.export, "--task", TASK, "--model_dir", str(tmp_path / "other"))
    assert list(found["not_compared"]) == ["there is no checkpoint of step 5, at which version 1 was exported"]


def test_the_text_reports_the_number_and_place_of_differences(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["skew", run.log, *_trained(run, OTHER_TASK), "--show", "1", "--examples", "30"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"version 1, step 5: 32 examples of 2 requests: \d+ equal, \d+ within 0.001, \d+ differ", told)
    assert re.search(r"request request-\d, example \d+: score \S+ logged, \S+ replayed; .*user \[\d+\]", told)


def test_what_another_model_answered_is_refused(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = RequestLog(RequestLogConfig(place=str(tmp_path), share=1.0))
    with Predictor(run.first) as predictor:
        inputs = predictor.signatures["serving_default"].inputs
    batch = make_batch(0)
    asked: Any = {name: batch[name] for name in inputs}
    outputs = {"elsewhere": torch.zeros(16)}
    log.answered(AnsweredRequest(b"r", "m", "serving_default", inputs, asked, 16, outputs, ModelVersion(1, -1, {})))
    log.close()
    assert main(["skew", str(tmp_path), "--export", run.export]) == 1
    assert "output 'elsewhere': 1 numbers of an example were logged, the model has no such output" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "request log 'nowhere': does not exist"),
        (["LOG", "--task", TASK], "--task: needs --model_dir, too"),
        (["LOG", "--model_dir", "m"], "--model_dir: needs --task, too"),
        (["LOG", "--params_override", "{}"], "--params_override: are parameters of a task; give --task"),
        (["LOG", "--fail_above", "1"], "--fail_above: must be at least 0 and below 1, got 1"),
        (["LOG", "--tolerance", "nan"], "tolerance must be a number >= 0, got nan"),
        (["LOG", "--show", "-1"], "--show: must be at least 0, got -1"),
        (["LOG", "--examples", "0"], "--examples: must be at least 1, got 0"),
        (["LOG", "--kafka", "x"], "--kafka takes KEY=VALUE, got 'x'"),
    ],
)
def test_wrong_arguments_are_one_line(
    run: Run, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [run.log if each == "LOG" else each for each in arguments]
    assert main(["skew", *given, "--export", run.export]) == 1
    told = capsys.readouterr().err.strip().splitlines()
    assert sentence in told[-1]
    assert told[-1].startswith("monolith skew: error: ")
