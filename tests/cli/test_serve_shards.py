"""`monolith serve` as processes: an entry with its shards, and a task with its code."""

from __future__ import annotations

import base64
import http.client
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc

from forked_starts import ForkingProcess
from monolith.cli import main
from monolith.online import DeltaPublisher
from monolith.serving import Predictor, export
from monolith.serving.protos import prediction_service_pb2 as messages
from monolith.serving.tensor_messages import METHODS, PREDICTION_SERVICE, message_of, path_of, value_of
from monolith.tensors import Ragged
from monolith.testing import NumberedBatches
from monolith.train import Trainer, TrainerConfig
from serving.branches_task import Branches
from serving.command_process import CommandProcess, CommandProcesses
from serving.small_models import encoded, make_batch, trained

WAIT = 60.0
# Lookups on a busy machine may be slow, and end before their request does.
PATIENT = ("--max_rpc_deadline_millis", "12000", "--request_seconds", "60", "--max_wait_ms", "60000")
COLUMNS = ("user", "item", "tags", "price", "ages")


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    return trained()


@pytest.fixture(scope="module")
def exports(trainer: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports")
    export(trainer, str(folder / "whole"), example=make_batch(0), version=1)
    export(trainer, str(folder / "parts"), example=make_batch(0), version=1, shards=3)
    return folder


@pytest.fixture
def processes(forking: ForkingProcess) -> Iterator[CommandProcesses]:
    with forking.forked_starts(), CommandProcesses() as started:
        yield started


def wait_until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(WAIT / 0.05)):
        if condition():
            return
        pause.wait(0.05)
    raise AssertionError("it did not come to pass")


def ask(process: CommandProcess, path: str, body: Any = None, port: str = "port") -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", process.place[port], timeout=WAIT)
    try:
        connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
        response = connection.getresponse()
        text = response.read()
        return response.status, json.loads(text) if path != "/metrics" else text.decode()
    finally:
        connection.close()


def wait_ready(process: CommandProcess) -> None:
    wait_until(lambda: ask(process, "/readyz")[0] == 200)


def is_serving(process: CommandProcess) -> bool:
    with grpc.insecure_channel(process.address) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=""), timeout=WAIT)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def by_grpc(process: CommandProcess, inputs: dict[str, Any]) -> dict[str, Any]:
    spec = messages.ModelSpec(name="ranker")
    request = messages.PredictRequest(
        model_spec=spec, inputs={name: message_of(values) for name, values in inputs.items()}
    )
    kinds = METHODS[PREDICTION_SERVICE]["Predict"]
    with grpc.insecure_channel(process.address) as channel:
        call = channel.unary_unary(
            path_of(PREDICTION_SERVICE, "Predict"), kinds.request.SerializeToString, kinds.response.FromString
        )
        outputs = call(request, timeout=WAIT).outputs
    return {name: value_of(values) for name, values in outputs.items()}


def columns_of(batch: Any) -> dict[str, Any]:
    """Lists, as JSON has them."""
    found: dict[str, Any] = {}
    for name in COLUMNS:
        values = batch[name]
        found[name] = values.to_lists() if isinstance(values, Ragged) else values.tolist()
    return found


def tensors_of(batch: Any) -> dict[str, Any]:
    """Tensors, as gRPC has them."""
    found: dict[str, Any] = {}
    for name in COLUMNS:
        values = batch[name]
        if isinstance(values, Ragged):
            found |= {f"{name}/values": values.flat_values, f"{name}/row_splits": values.row_splits}
        else:
            found[name] = values
    return found


def require_equal(entry: CommandProcess, whole: Predictor, number: int) -> None:
    """Columns and encoded samples, over REST and gRPC, are answered as the model in one piece does, bit for bit."""
    batch = make_batch(number, 9)
    wanted = whole.predict(batch).outputs
    path = "/v1/models/ranker:predict"
    asked: list[Any] = [{"inputs": columns_of(batch)}]
    for form, samples in encoded(batch).items():
        told = [{"b64": base64.b64encode(each).decode()} for each in samples]
        asked.append({"inputs": {form: told}})
    for body in asked:
        status, answer = ask(entry, path, body)
        assert status == 200, answer
        for name, values in wanted.items():
            assert torch.equal(torch.tensor(answer["outputs"][name], dtype=torch.float32), values)
    for inputs in [tensors_of(batch), *({form: samples} for form, samples in encoded(batch).items())]:
        found = by_grpc(entry, inputs)
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def require_watched(shard: CommandProcess, model: str) -> None:
    """A shard tells how it is."""
    assert ask(shard, "/healthz") == (200, {"status": "ok"})
    assert ask(shard, "/readyz") == (200, {"status": "ok"})
    assert is_serving(shard)
    status, told = ask(shard, "/v1/models/ranker")
    assert (status, f"{model} answers over gRPC, at" in told["error"]) == (404, True)
    shown = ask(shard, "/metrics", port="metrics_port")[1]
    assert f'requests_total{{code="0",model_name="{model}"}}' in shown
    assert f'rows{{model_name="{model}"' in shown


@pytest.mark.slow
def test_an_entry_and_three_shards_answer_as_one_model_while_replicas_die_and_hang(
    exports: Path, processes: CommandProcesses
) -> None:
    parts = f"ranker={exports / 'parts'}"
    shards = [processes.serve(parts, "--shard", f"{index}/3") for index in range(3)]
    other = processes.serve(parts, "--shard", "1/3")
    listed = ";".join([shards[0].address, f"{shards[1].address},{other.address}", shards[2].address])
    entry = processes.serve(parts, "--shards", listed, *PATIENT)
    assert [each.place["models"] for each in shards[:2]] == [
        [{"name": "ranker:ps_0", "version": 1}],
        [{"name": "ranker:ps_1", "version": 1}],
    ]
    wait_ready(entry)
    status, told = ask(entry, "/v1/promotion")
    assert (status, "rows are at shards" in told["models"]["ranker"]["no_commands"]) == (200, True)
    with Predictor(str(exports / "whole")) as whole:
        require_equal(entry, whole, 3)
        for index, shard in enumerate(shards):
            require_watched(shard, f"ranker:ps_{index}")
        # With another replica there no request fails, whenever one is killed.
        failures: list[Any] = []
        stop = threading.Event()
        body = {"inputs": columns_of(make_batch(5))}

        def keep_asking() -> None:
            while not stop.wait(0.01):
                status, answer = ask(entry, "/v1/models/ranker:predict", body)
                if status != 200:
                    failures.append(answer)

        thread = threading.Thread(target=keep_asking)
        thread.start()
        shards[1].send(signal.SIGKILL)
        for number in (6, 7):
            require_equal(entry, whole, number)
        stop.set()
        thread.join(WAIT)
        assert failures == []
    # A shard that hangs alone: a status, no later than the deadline of lookups allows.
    other.send(signal.SIGSTOP)
    begin = time.monotonic()
    status, told = ask(entry, "/v1/models/ranker:predict", body)
    assert (status, "shard 1 of ranker" in told["error"] or "shard at" in told["error"]) == (504, True)
    assert time.monotonic() - begin < WAIT / 2
    wait_until(lambda: "shard 1 of ranker" in str(ask(entry, "/readyz")[1]))
    other.send(signal.SIGCONT)
    wait_until(lambda: ask(entry, "/v1/models/ranker:predict", body)[0] == 200)
    assert [processes.end(each) for each in (other, shards[0], entry)] == [0, 0, 0]


@pytest.mark.slow
def test_shards_that_follow_are_ready_when_they_have_caught_up_and_are_found_by_discovery(
    trainer: Trainer, exports: Path, processes: CommandProcesses, tmp_path: Path
) -> None:
    parts, log, hosts = f"ranker={exports / 'parts'}", str(tmp_path / "log"), str(tmp_path / "hosts")
    secret = tmp_path / "secret"
    secret.write_text("sesame\n")
    found = ("--follow", log, "--discovery_type", "host", "--discovery_dir", hosts)
    guarded = ("--token_file", str(secret))
    shards = [processes.serve(parts, "--shard", f"{index}/3", *found, *guarded) for index in range(3)]
    entry = processes.serve(parts, *found, "--shard_token_file", str(secret), *PATIENT)
    for shard in shards:
        status, told = ask(shard, "/readyz")
        assert (status, "delta log" in told["error"]) == (503, True), "there is no log yet"
        assert not is_serving(shard)
    assert not (tmp_path / "hosts").exists(), "none of them is to be found"
    status, told = ask(entry, "/v1/models/ranker:predict", {"inputs": columns_of(make_batch(3))})
    assert (status, "no replica of it is known" in told["error"]) == (503, True)
    state: Any = trainer.state

    def dense() -> dict[str, torch.Tensor]:
        return {name: weight.data for name, weight in state.model.named_parameters()}

    publisher = DeltaPublisher(state.stores, log, dense=dense, dense_interval=0.001)
    try:
        publisher.publish()
        for process in (*shards, entry):
            wait_ready(process)
        assert all(map(is_serving, shards))
        assert sorted(each.name for each in (tmp_path / "hosts").iterdir()) == [f"ranker-ps-{i}" for i in range(3)]
        batch = make_batch(3)
        expected = trainer.predict(batch)["score"]
        status, answer = ask(entry, "/v1/models/ranker:predict", {"inputs": columns_of(batch)})
        assert status == 200
        assert torch.equal(torch.tensor(answer["outputs"]["score"], dtype=torch.float32), expected)
    finally:
        publisher.close()
    assert processes.end(shards[0]) == 0
    assert not list((tmp_path / "hosts" / "ranker-ps-0").glob("*")), "it is not to be found any more"


@pytest.mark.slow
def test_a_task_that_cannot_be_exported_is_served_with_its_code(
    processes: CommandProcesses, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = TrainerConfig(model_dir=str(tmp_path))
    trainer = Trainer(Branches, config)
    trainer.train(steps=5)
    batch: Any = NumberedBatches(num_batches=4).make(3)
    with pytest.raises(ValueError, match="cannot be exported because of"):
        trainer.export(str(tmp_path / "export"), example=batch)
    served = processes.serve("--task", "ranker=branches_task:Branches", "--model_dir", str(tmp_path))
    assert served.place["models"] == [{"name": "ranker", "version": 5}]
    path = "/v1/models/ranker:predict"
    inputs = {name: batch[name] for name in ("user", "item")}
    for size in (1, 32):
        body = {"inputs": {name: values[:size].tolist() for name, values in inputs.items()}}
        status, answer = ask(served, path, body)
        expected = trainer.predict({name: values[:size] for name, values in inputs.items()})
        assert status == 200
        assert torch.equal(torch.tensor(answer["outputs"], dtype=torch.float32), expected)
    assert torch.equal(by_grpc(served, inputs)["predictions"], trainer.predict(inputs))
    status, told = ask(served, "/v1/models/ranker/metadata")
    known = told["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert (sorted(known["inputs"]), sorted(known["outputs"])) == (["item", "user"], ["predictions"])
    for wrong, sentence in (
        ({"user": [1]}, "input 'item' is missing"),
        ({"user": [1.5], "item": [1]}, "must be integers"),
        ({"user": [1], "item": [1], "label": [1]}, "'label' is unknown"),
        ({"example_batch": {"b64": "GAE="}}, "encoded samples are read by exports alone"),
    ):
        status, told = ask(served, path, {"inputs": wrong})
        assert (status, sentence in told["error"]) == (400, True), told
    url = f"http://127.0.0.1:{served.place['port']}"
    assert main(["models", "list", "--url", url]) == 0
    assert "ranker: version 5 answers\n" in (listed := capsys.readouterr().out)
    assert "it takes no commands: a task" in listed
    assert main(["models", "rollback", "ranker", "5", "--url", url]) == 1
    assert "model 'ranker': it takes no commands: a task, or an entry" in capsys.readouterr().err
    trainer.train(steps=2)
    wait_until(lambda: ask(served, "/v1/models/ranker")[1]["model_version_status"][0]["version"] == "7")
    status, answer = ask(served, path, {"inputs": {name: values.tolist() for name, values in inputs.items()}})
    assert torch.equal(torch.tensor(answer["outputs"], dtype=torch.float32), trainer.predict(inputs))
    assert processes.end(served) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "give what to serve"),
        (["--task", "json:dumps"], "--model_dir: must name the folder of the checkpoints of --task"),
        (["--task", "a=m:T", "--model_dir", "x", "--follow", "log"], "newer checkpoints of --model_dir are loaded"),
        (["x", "--model_dir", "y"], "--model_dir: it has the checkpoints of --task"),
        (["x", "--shard", "0/3", "--shards", "a:1"], "--shards: it is for the entry"),
        (["x", "--shards", "a:1", "--discovery_type", "host"], "listed, or found by --discovery_type"),
        (["x", "y", "--shard", "0/3"], "with shards a process serves one export"),
        (["x", "--shard", "3/3"], "an index from 0 to 2 expected, got 3"),
        (["x", "--shard", "one"], "i/n expected"),
        (["x", "--shard", "0/3"], "neither an export"),
        (["x", "--shard", "0/3", "--batch_examples", "7"], "--batch_examples: a shard has no queue"),
        (["x", "--shard", "0/3", "--request_log", "there"], "--request_log: a shard sees ids alone"),
        (["x", "--shard", "0/3", "--gate", "g.toml"], "--gate: it is for exports whose rows this process has"),
        (["x", "--shards", "a:1", "--keep_versions", "2"], "--keep_versions: it is for exports whose rows"),
        (["--task", "a:B", "--model_dir", "m", "--promotion_file", "p"], "--promotion_file: it is for exports"),
        (["x", "--hedge_millis", "7"], "--hedge_millis: it configures requests to shards, and this process sends none"),
        (
            ["x", "--shards", "a:1", "--max_rpc_deadline_millis", "10000"],
            "does not end before its request, which has 10 s",
        ),
        (
            ["x", "--shards", "a:1", "--max_rpc_deadline_millis", "500", "--request_seconds", "0.5"],
            "a lookup of 500 ms does not end before its request",
        ),
        (["x", "--max_staleness_seconds", "5"], "--max_staleness_seconds: without --follow nothing gets stale"),
        (["x", "--follow", "l", "--max_staleness_seconds", "0"], "--max_staleness_seconds must be > 0, got 0"),
        (["x", "--replica", "1"], "--replica: it is the number that a --shard registers with"),
        (["x", "--discovery_dir", "d"], "--discovery_dir: it is of a discovery service"),
        (["x", "--shards", "nonsense"], "expected host:port"),
    ],
)
def test_options_that_cannot_be_or_have_no_effect_are_refused(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["serve", *arguments, "--port", "0"]) == 1
    told = capsys.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1
