"""A run that only writes its batches, as files that can be read again."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from monolith import cli
from monolith.data import Framing, RecordReader
from monolith.data.protos.example_pb2 import ExampleBatch, FeatureListType
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.tensors import Ragged
from monolith.testing import ExampleTask
from monolith.train import Trainer, TrainerConfig, local_train, task_wrappers
from monolith.train.task_wrappers import example_batch_of_features
from train.job_threads import ThreadJob


def written(folder: Path, who: str) -> list[list[ExampleBatch]]:
    """The batches of each file, the files in any order."""
    found = []
    for path in sorted((folder / "features").glob(f"{who}_*.pb")):
        content, place, batches = path.read_bytes(), 0, []
        while place < len(content):
            sort_id, length = struct.unpack_from("<QQ", content, place)
            assert sort_id == 0
            batches.append(ExampleBatch.FromString(content[place + 16 : place + 16 + length]))
            place += 16 + length
        found.append(batches)
    return sorted(found, key=len)


def test_batches_are_written_and_nothing_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_wrappers, "BATCHES_PER_FILE", 4)
    params = ExampleTask.params().set(num_batches=10)
    local_train(params, model_dir=str(tmp_path), only_feature_engineering=True)
    assert [len(batches) for batches in written(tmp_path, "chief")] == [2, 4, 4]
    assert [path for path in tmp_path.iterdir() if path.suffix in {".manifest", ".meta"}] == []
    seen = [batch for batches in written(tmp_path, "chief") for batch in batches]
    expected = [ExampleTask(params).input_fn("train").make(number) for number in range(10)]
    users = sorted(tuple(entry.fid_v2_list.value[0] for entry in columns(batch)["user"]) for batch in seen)
    assert users == sorted(tuple(torch.as_tensor(batch["user"]).tolist()) for batch in expected)
    assert all(each.type == FeatureListType.INDIVIDUAL for each in seen[0].named_feature_list)
    assert columns(seen[0])["label"][0].WhichOneof("type") == "float_list"


def columns(batch: ExampleBatch) -> dict[str, Any]:
    return {each.name: each.feature for each in batch.named_feature_list}


def test_the_last_file_exists_although_it_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_wrappers, "BATCHES_PER_FILE", 3)
    params = ExampleTask.params().set(num_batches=9)
    config = TrainerConfig(model_dir=str(tmp_path), only_feature_engineering=True, worker_index=2, num_workers=3)
    Trainer(params, config).train()
    assert [len(batches) for batches in written(tmp_path, "worker2")] == [0, 3]
    assert task_wrappers.BATCHES_PER_FILE == 3


def test_a_hundred_batches_make_a_file() -> None:
    assert task_wrappers.BATCHES_PER_FILE == 100


def test_files_can_be_read_again_as_what_they_are(tmp_path: Path) -> None:
    local_train(ExampleTask.params(), model_dir=str(tmp_path), steps=2, only_feature_engineering=True)
    (path,) = (tmp_path / "features").iterdir()
    with RecordReader(str(path), Framing.SORT_ID) as reader:
        assert [ExampleBatch.FromString(record).batch_size for record in reader] == [32, 32]


def test_the_command_line_writes_features_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = "monolith.testing:ExampleTask"
    options = ["--model_dir", str(tmp_path), "--only_feature_engineering", "--steps", "3"]
    assert cli.main(["train", task, *options]) == 0
    assert [len(batches) for batches in written(tmp_path, "chief")] == [3]
    assert f"the features of 3 batches are in {tmp_path}/features" in capsys.readouterr().err


def test_every_kind_of_column_has_its_list() -> None:
    batch = example_batch_of_features(
        {
            "ids": Ragged.from_lists([[7, -1], []]),
            "weights": torch.tensor([[0.5, 1.0], [2.0, 3.0]]),
            "flag": torch.tensor([True, False]),
            "text": [b"a", b""],
        }
    )
    assert batch.batch_size == 2
    found = columns(batch)
    assert [list(entry.fid_v2_list.value) for entry in found["ids"]] == [[7, 2**64 - 1], []]
    assert [list(entry.float_list.value) for entry in found["weights"]] == [[0.5, 1.0], [2.0, 3.0]]
    assert [list(entry.fid_v2_list.value) for entry in found["flag"]] == [[1], [0]]
    assert [list(entry.bytes_list.value) for entry in found["text"]] == [[b"a"], [b""]]


@pytest.mark.parametrize(
    ("features", "text"),
    [
        (torch.zeros(2), "columns by name expected, got Tensor"),
        ({"a": torch.zeros(2), "b": torch.zeros(3)}, r"columns of one length expected, got \{'a': 2, 'b': 3\}"),
        ({"a": torch.tensor(1.0)}, "column 'a' must be a tensor with a row for each example"),
        ({"a": ["text"]}, "column 'a' must be .* got list"),
    ],
)
def test_what_cannot_be_written_is_refused(features: Any, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        example_batch_of_features(features)


def test_there_is_no_model_to_predict_with_and_no_place_without_a_folder(tmp_path: Path) -> None:
    trainer = Trainer(ExampleTask, TrainerConfig(model_dir=str(tmp_path), only_feature_engineering=True))
    trainer.train(steps=1)
    with pytest.raises(FailedPreconditionError, match=r"only writes features .* and has no model to eval with"):
        trainer.evaluate(steps=1)
    with pytest.raises(ValueError, match="only_feature_engineering writes into the model directory; give model_dir"):
        TrainerConfig(only_feature_engineering=True)


def test_every_worker_of_a_job_writes_what_it_reads(tmp_path: Path) -> None:
    def params() -> Any:
        return ExampleTask.params().set(num_batches=3)

    ThreadJob(tmp_path, num_workers=2, params=params, options={"only_feature_engineering": True}).run()
    assert [len(batches) for batches in written(tmp_path, "chief")] == [2]
    assert [len(batches) for batches in written(tmp_path, "worker1")] == [1]
    assert list(tmp_path.glob("*.manifest")) == []
