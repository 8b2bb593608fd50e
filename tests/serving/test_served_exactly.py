"""A server that cannot import the task answers as the trainer does, bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import torch

from monolith import environment
from monolith.serving import export
from monolith.serving.protos import prediction_service_pb2 as messages
from monolith.serving.tensor_messages import METHODS, PREDICTION_SERVICE, message_of, path_of, value_of
from monolith.tensors import Ragged
from monolith.train import SavingConfig, Trainer, TrainerConfig
from serving.deepfm_task import DeepFM, make_batch

pytestmark = pytest.mark.slow

PATIENCE_SECONDS = 120
ASKED = make_batch(77, size=40)
"""Some of its ids were trained, others never seen."""
_SERVE = """
import importlib.util, sys
assert importlib.util.find_spec("serving") is None, "the task could be imported"
from monolith.cli import main
sys.exit(main(["serve", *sys.argv[1:], "--port", "0", "--grpc_port", "0", "--json"]))
"""


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    config = TrainerConfig(model_dir=str(tmp_path_factory.mktemp("model")), saving=SavingConfig(every_steps=6))
    trainer = Trainer(DeepFM, config)
    trainer.train(steps=12)
    return trainer


@pytest.fixture(scope="module")
def place(trainer: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Where it listens: with an export of a trainer, of a model directory, and of that in three parts."""
    folder = tmp_path_factory.mktemp("exports")
    export(trainer, str(folder / "trained"), example=make_batch(0))
    model_dir = str(trainer.config.model_dir)
    export(model_dir, str(folder / "saved"), example=make_batch(0), task=DeepFM)
    export(model_dir, str(folder / "parts"), example=make_batch(0), task=DeepFM, shards=3)
    models = [f"{name}={folder / name}" for name in ("trained", "saved", "parts")]
    variables = environment.starting_with("")
    variables.pop("PYTHONPATH", None)
    command = [sys.executable, "-c", _SERVE, *models]
    process = subprocess.Popen(command, cwd=folder, env=variables, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.communicate()


def columns(batch: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: batch[name].to_lists() if isinstance(batch[name], Ragged) else batch[name].tolist() for name in names}


def over_rest(place: dict[str, Any], model: str, body: dict[str, Any]) -> Any:
    url = f"http://127.0.0.1:{place['port']}/v1/models/{model}:predict"
    request = urllib.request.Request(url, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:  # noqa: S310 - our own server
        return json.loads(response.read())


def over_grpc(place: dict[str, Any], model: str, batch: Any, signature: str = "") -> dict[str, torch.Tensor]:
    tags = batch["tags"]
    inputs = {
        "user": batch["user"],
        "item": batch["item"],
        "tags/values": tags.values,
        "tags/row_splits": tags.row_splits,
    }
    if not signature:
        inputs["price"] = batch["price"]
    request = messages.PredictRequest(
        model_spec=messages.ModelSpec(name=model, signature_name=signature),
        inputs={name: message_of(each) for name, each in inputs.items()},
    )
    with grpc.insecure_channel(f"127.0.0.1:{place['grpc_port']}") as channel:
        kinds = METHODS[PREDICTION_SERVICE]["Predict"]
        call = channel.unary_unary(path_of(PREDICTION_SERVICE, "Predict"), None, kinds.response.FromString)
        answer = call(request.SerializeToString(), timeout=PATIENCE_SECONDS)
    return {name: value_of(each) for name, each in answer.outputs.items()}  # type: ignore[misc]


@pytest.mark.parametrize("model", ["trained", "saved", "parts"])
def test_scores_are_those_of_the_trainer_bit_for_bit(trainer: Trainer, place: dict[str, Any], model: str) -> None:
    expected = trainer.predict(ASKED)
    assert expected.dtype == torch.float32
    assert torch.equal(over_grpc(place, model, ASKED)["predictions"], expected)
    body = {"inputs": columns(ASKED, ("user", "item", "tags", "price"))}
    assert torch.equal(torch.tensor(over_rest(place, model, body)["outputs"]), expected)


def test_outputs_that_were_added_are_answered_under_their_name(trainer: Trainer, place: dict[str, Any]) -> None:
    found = over_grpc(place, "saved", ASKED, "pairs")
    assert found.keys() == {"pairs", "vectors"}
    assert list(found["vectors"].shape) == [40, 8]
    asked = {"signature_name": "pairs", "inputs": columns(ASKED, ("user", "item", "tags"))}
    outputs = over_rest(place, "saved", asked)["outputs"]
    assert outputs.keys() == found.keys()
    assert all(torch.equal(torch.tensor(outputs[name]), each) for name, each in found.items())
    task = trainer.task
    assert isinstance(task, DeepFM)
    task.emb.eval()
    with torch.no_grad():
        vectors = task.emb(ASKED).stack()[..., 1:]
        assert torch.equal(found["pairs"], (vectors.sum(1).square() - vectors.square().sum(1)).sum(1) / 2)
    url = f"http://127.0.0.1:{place['port']}/v1/models/saved/metadata"
    with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as response:
        listed = json.loads(response.read())["metadata"]["signature_def"]["signature_def"]
    assert listed.keys() >= {"serving_default", "pairs"}
