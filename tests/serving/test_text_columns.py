"""Texts of requests become the ids that the same texts had in training, from a CSV file to an answer."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

import monolith as ml
from monolith.data import Batch, CsvDataset, DenseColumn, Ids, JsonParser, Label, ParquetDataset, TextColumn, text_ids
from monolith.data.rows import concat_batches, take_rows, with_columns
from monolith.errors import DataLossError, InvalidArgumentError
from monolith.export.signature import Signature
from monolith.serving import Predictor
from monolith.serving.protos import prediction_service_pb2 as messages
from monolith.serving.protos.tensor_pb2 import DT_STRING
from monolith.serving.server import ModelRegistry, ModelServer
from monolith.serving.server.grpc_service import MOST_TEXTS
from monolith.serving.tensor_messages import PREDICTION_SERVICE, message_of, path_of, value_of
from monolith.tables.compressors import Fp32
from monolith.train import Spec, Trainer

USERS = ["ann", "bob", "Zoë", "", "123", "x" * 70]
GENRES = ["Action|Comedy", "Drama", "Action", "", "Noir|Drama|Action", "Comedy"]
AGES = [24, 31, 40, 18, 77, 50]
COLUMNS = [
    Ids("user", slot=7),
    Ids("genres", separator="|"),
    Ids("seen", texts_of="user", separator=" ", length=2),
    DenseColumn("age", width=1),
    Label(),
]
SEEN = ["ann bob", "bob", "Zoë ann", "", "123", "bob ann"]


def write_csv(path: Path) -> str:
    lines = ["user,genres,seen,age,label"]
    for number in range(60):
        row = number % len(USERS)
        lines.append(f'"{USERS[row]}","{GENRES[row]}","{SEEN[row]}",{AGES[row]},{number % 2}')
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


class Ranker(ml.Task):
    """Reads a CSV file with texts."""

    path = ""

    def build(self) -> None:
        self.emb = ml.Embeddings({name: ml.Slot(dim=4, compressor=Fp32()) for name in ("user", "genres", "seen")})
        self.out = torch.nn.Linear(13, 1)

    def input_fn(self, mode: str) -> Any:
        return CsvDataset(self.path, columns=COLUMNS).shuffle(60, seed=1).batch(12)

    def model_fn(self, batch: Any, mode: str) -> Spec:
        rows = self.emb(batch)
        joined = torch.cat([rows["user"], rows["genres"], rows["seen"], batch["age"] / 100], 1)
        logits = self.out(joined).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, batch["label"].squeeze(1))
        return Spec(loss=loss, predictions=torch.sigmoid(logits))


class Trained:
    """A model that has learnt from texts, its export, and the server that is asked."""

    server: ModelServer

    def __init__(self, folder: Path) -> None:
        path = write_csv(folder / "train.csv")
        trainer = Trainer(type("CsvRanker", (Ranker,), {"path": path})())
        trainer.train(steps=10)
        self.batch = next(iter(CsvDataset(path, columns=COLUMNS).batch(len(USERS))))
        self.expected = trainer.predict(self.batch)
        self.export = trainer.export(str(folder / "export"))
        self.predictor = Predictor(self.export)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("texts"))


@pytest.fixture
def trained(model: Trained) -> Iterator[Trained]:
    registry = ModelRegistry()
    registry.add("ranker", model.predictor)
    with ModelServer(registry, grpc_port=0) as model.server:
        yield model


def ask(trained: Trained, body: dict[str, Any]) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{trained.server.port}/v1/models/ranker:predict", json.dumps(body).encode()
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - the same
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]


def call(trained: Trained, inputs: dict[str, Any]) -> Any:
    request = messages.PredictRequest(model_spec=messages.ModelSpec(name="ranker"))
    for name, values in inputs.items():
        request.inputs[name].CopyFrom(message_of(values))
    with grpc.insecure_channel(f"127.0.0.1:{trained.server.grpc_port}") as channel:
        data = channel.unary_unary(path_of(PREDICTION_SERVICE, "Predict"))(request.SerializeToString(), timeout=60)
    return value_of(messages.PredictResponse.FromString(data).outputs["predictions"])


ROWS: list[dict[str, Any]] = [
    {"user": user, "genres": genres, "seen": seen, "age": age}
    for user, genres, seen, age in zip(USERS, GENRES, SEEN, AGES, strict=True)
]


def test_texts_are_answered_as_the_trainer_answers_the_rows_of_its_file(trained: Trained) -> None:
    assert len(set(trained.expected.tolist())) == len(USERS), "every row is another one to the model"
    status, answer = ask(trained, {"instances": ROWS})
    assert (status, answer["predictions"]) == (200, pytest.approx(trained.expected.tolist(), abs=1e-6))
    columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    assert ask(trained, {"inputs": columns})[1]["outputs"] == answer["predictions"]
    by_grpc = call(
        trained,
        {
            **{name: [text.encode() for text in columns[name]] for name in ("user", "genres", "seen")},
            "age": torch.tensor(AGES, dtype=torch.float32),
        },
    )
    assert by_grpc.tolist() == pytest.approx(answer["predictions"], abs=1e-6)
    predicted = trained.predictor.predict(columns | {"age": [[age] for age in AGES]}).outputs["predictions"]
    assert torch.equal(predicted, by_grpc)


def test_lists_of_texts_bytes_and_ids_mean_the_same(trained: Trained) -> None:
    expected = ask(trained, {"instances": ROWS[4:5]})[1]["predictions"]
    listed = {**ROWS[4], "genres": ["Noir", "Drama", "Action"], "user": {"b64": "MTIz"}}
    assert ask(trained, {"instances": [listed]})[1]["predictions"] == expected
    user: Any = trained.batch["user"]
    ids = {**ROWS[4], "user": user.to_lists()[4]}
    assert ask(trained, {"instances": [ids]})[1]["predictions"] == expected
    rectangle = message_of(torch.zeros(1))
    rectangle.Clear()
    rectangle.dtype = DT_STRING
    rectangle.string_val.extend([b"Noir", b"Drama", b"Action"])
    for size in (1, 3):
        rectangle.tensor_shape.dim.add(size=size)
    request = messages.PredictRequest(model_spec=messages.ModelSpec(name="ranker"))
    request.inputs["genres"].CopyFrom(rectangle)
    for name, values in (("user/values", [b"123"]), ("user/row_splits", torch.tensor([0, 1])), ("seen", [b"123"])):
        request.inputs[name].CopyFrom(message_of(values))
    request.inputs["age"].CopyFrom(message_of(torch.tensor([[77.0]])))
    with grpc.insecure_channel(f"127.0.0.1:{trained.server.grpc_port}") as channel:
        data = channel.unary_unary(path_of(PREDICTION_SERVICE, "Predict"))(request.SerializeToString(), timeout=60)
    assert value_of(messages.PredictResponse.FromString(data).outputs["predictions"]).tolist() == pytest.approx(
        expected
    )


def test_texts_over_grpc_are_counted_before_they_are_objects(trained: Trained) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call(trained, {"user": [b""] * (MOST_TEXTS + 1)})
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "may have 1048576 texts, got 1048577" in caught.value.details()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"user": None}, "input 'user': must be texts, or integer ids, got null"),
        ({"user": 1.5}, "input 'user': must be texts, or integer ids, got a number"),
        ({"user": ["ann", 3]}, "input 'user': has texts, so that all values must be texts, got an integer"),
        ({"user": [["ann"]]}, "input 'user': has texts, so that all values must be texts, got a list in a list"),
        ({"user": {"b64": "%"}}, "input 'user': b64 must be base64"),
        ({"age": "24"}, "input 'age': must be numbers, got a text"),
        ({"age": [24, 25]}, "input 'age': must have the shape [1] for an example, got [2]"),
    ],
)
def test_what_is_neither_a_text_nor_an_id_is_refused(trained: Trained, change: dict[str, Any], sentence: str) -> None:
    status, told = ask(trained, {"instances": [{**ROWS[0], **change}]})
    assert (status, told) == (400, sentence)


def test_a_predictor_rejects_texts_mixed_with_numbers(trained: Trained) -> None:
    with pytest.raises(InvalidArgumentError, match=r"input 'user': has texts, .* got int"):
        trained.predictor.predict({"user": ["ann", 3], "genres": ["a"], "seen": ["a"], "age": [[1.0]]})


def test_an_export_from_before_takes_ids_alone_and_a_forged_one_is_refused(trained: Trained) -> None:
    document = json.loads((Path(trained.export) / "manifest.json").read_text())["signatures"]["serving_default"]
    assert document["inputs"]["seen"]["texts"] == {"name": "user", "separator": " ", "slot": None, "length": 2}
    assert "texts" not in document["inputs"]["age"]
    for each in document["inputs"].values():
        each.pop("texts", None)
    old = Signature.from_json(document, origin="old")
    assert all(each.texts is None for each in old.inputs.values())
    forged: list[Any] = [
        {"name": 3},
        {"name": "a", "separator": ""},
        {"name": "a", "slot": 1 << 15},
        {"name": "a", "slot": True},
        {"name": "a", "length": 1 << 40},
        {"name": "a", "salt": "b"},
        [],
    ]
    for wrong in forged:
        document["inputs"]["user"]["texts"] = wrong
        with pytest.raises(DataLossError, match="not a signature"):
            Signature.from_json(document, origin="forged")


class TestDatasets:
    """Whatever reads texts says how they became ids."""

    def test_csv_parquet_and_json(self, tmp_path: Path) -> None:
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        path = write_csv(tmp_path / "a.csv")
        texts = {"user": USERS, "genres": GENRES, "seen": SEEN}
        batches: list[tuple[Batch, set[str]]] = [(next(iter(CsvDataset(path).batch(6))), set(texts))]
        batches.append((next(iter(CsvDataset(path, columns=COLUMNS).batch(6))), set(texts)))
        batches.append((next(iter(CsvDataset(path, columns={"age": "text", "user": "ids"}).batch(6))), {"age", "user"}))
        pq.write_table(pa.table({**texts, "age": AGES}), tmp_path / "a.parquet")
        batches.append((next(iter(ParquetDataset(str(tmp_path / "a.parquet")))), set(texts)))
        lines = [json.dumps(row).encode() for row in ROWS]
        batches.append(
            (JsonParser({"user": "ids", "age": "float", "genres": Ids("genres")}).parse(lines), {"user", "genres"})
        )
        for batch, expected in batches:
            assert set(batch.texts) == expected
            for name, how in batch.texts.items():
                found = how.ids([*map(str, AGES)] if name == "age" else texts[name])
                values: Any = batch[name]
                given = found.to_lists() if isinstance(found, ml.Ragged) else found.tolist()
                read = values.to_lists() if isinstance(values, ml.Ragged) else values.tolist()
                assert [each if isinstance(each, list) else [each] for each in given] == read

    def test_the_text_columns_of_a_batch_stay_with_its_columns(self) -> None:
        texts = {"user": TextColumn("user"), "item": TextColumn("thing")}
        columns = {"user": text_ids("user", ["a", "b"]), "item": text_ids("thing", ["c", "d"])}
        batch = Batch(columns, texts={**texts, "gone": TextColumn("gone")})
        assert batch.texts == texts
        assert take_rows(batch, torch.tensor([1])).texts == texts
        assert concat_batches([batch, batch]).texts == texts
        assert concat_batches([batch, Batch(columns, texts={"user": TextColumn("user")})]).texts == {
            "user": TextColumn("user")
        }
        assert with_columns(batch, {"user": columns["user"] + 1}).texts == {"item": TextColumn("thing")}
        assert batch.to("cpu").texts == texts
