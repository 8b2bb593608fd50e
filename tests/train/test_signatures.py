"""What an export says of the questions that it can answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import monolith as ml
from monolith.testing import ExampleTask
from monolith.train import Estimator, RunConfig, Spec, Trainer, TrainerConfig


class TwoAnswers(ExampleTask):
    """Answers with a score and a vector for each example."""

    def build(self) -> None:
        self.emb = ml.Embeddings({"user": ml.Slot(dim=4), "item": ml.Slot(dim=8)})

    def model_fn(self, features: Any, mode: Any) -> Spec:
        rows = self.emb(features)
        logits = rows["user"].sum(1) + rows["item"].sum(1)
        if mode == "predict":
            return Spec(predictions={"score": logits.sigmoid(), "vector": rows["item"]})
        return Spec(torch.nn.functional.binary_cross_entropy_with_logits(logits, features["label"]))

    def signatures(self) -> dict[str, list[str]]:
        return {"score": ["user", "item"]}


def exported(task: Any, folder: Path, example: Any = None) -> dict[str, Any]:
    trainer = Trainer(task)
    trainer.train(steps=3)
    prefix = trainer.export(str(folder), example=example)
    found: dict[str, Any] = json.loads(Path(f"{prefix}.signatures.json").read_text())
    return found


EXAMPLE = ExampleTask().input_fn("train").make(0)


def test_without_an_example_the_slots_are_what_is_read(tmp_path: Path) -> None:
    found = exported(ExampleTask, tmp_path)
    ids = {"kind": "ids", "dim": 4}
    assert found == {
        "format": "monolith-signatures",
        "version": 1,
        "task": "ExampleTask",
        "global_step": 3,
        "signatures": {"serving_default": {"inputs": {"user": ids, "item": ids}, "outputs": None}},
    }


def test_an_example_gives_types_and_shapes(tmp_path: Path) -> None:
    found = exported(TwoAnswers, tmp_path, EXAMPLE)
    assert found["signatures"] == {
        "score": {
            "inputs": {
                "user": {"kind": "ids", "dim": 4, "dtype": "int64", "shape": [None]},
                "item": {"kind": "ids", "dim": 8, "dtype": "int64", "shape": [None]},
            },
            "outputs": {
                "score": {"dtype": "float32", "shape": [None]},
                "vector": {"dtype": "float32", "shape": [None, 8]},
            },
        }
    }


def test_every_column_of_the_example_is_read_where_the_task_names_none(tmp_path: Path) -> None:
    columns = {**EXAMPLE, "user": ml.Ragged.from_lists([[1, 2]] * 32), "text": [b"a"] * 32}
    inputs = exported(ExampleTask, tmp_path, columns)["signatures"]["serving_default"]["inputs"]
    assert inputs["user"] == {"kind": "ids", "dim": 4, "dtype": "int64", "shape": [None, None], "ragged": True}
    assert inputs["label"] == {"kind": "dense", "dtype": "float32", "shape": [None]}
    assert inputs["text"] == {"kind": "dense", "dtype": "bytes", "shape": [None]}


def test_the_export_is_untouched_by_its_example(tmp_path: Path) -> None:
    trainer = Trainer(ExampleTask)
    rows = trainer.train(steps=3).embeddings["emb"].num_rows
    unseen = {"user": torch.tensor([10**9]), "item": torch.tensor([10**9])}
    trainer.export(str(tmp_path), example=unseen)
    restored = Trainer(ExampleTask, TrainerConfig(model_dir=str(tmp_path))).train(steps=0)
    assert (restored.embeddings["emb"].num_rows, restored.global_step) == (rows, 3)


def test_a_later_export_takes_the_place_of_the_earlier_one(tmp_path: Path) -> None:
    trainer = Trainer(ExampleTask)
    for _ in range(2):
        trainer.train(steps=3)
        trainer.export(str(tmp_path))
    assert [path.name for path in tmp_path.glob("*.signatures.json")] == ["model.ckpt-6.signatures.json"]


def test_an_estimator_and_a_url(tmp_path: Path) -> None:
    with Estimator(TwoAnswers, RunConfig(model_dir=str(tmp_path))) as estimator:
        estimator.train(steps=2)
        prefix = estimator.export_saved_model("out", example=EXAMPLE)
        assert "score" in json.loads(Path(f"{prefix}.signatures.json").read_text())["signatures"]
        prefix = estimator.trainer.export("memory://signatures/m")
        assert prefix.startswith("memory://")


@pytest.mark.parametrize(
    ("signatures", "example", "said"),
    [
        ({"a": []}, None, "signature 'a': it reads no column"),
        ({"a": ["user", "itm"]}, EXAMPLE, "column 'itm' is not in the example, which has user, item"),
        ({"a": ["user"]}, EXAMPLE, "signature 'a': the model cannot answer from user: .*'item'"),
        ({}, {}, "example must be a batch with columns by name, got dict"),
        ({}, torch.zeros(3), "example must be a batch with columns by name, got Tensor"),
    ],
)
def test_what_cannot_be_answered_is_refused_and_nothing_written(
    signatures: dict[str, list[str]], example: Any, said: str, tmp_path: Path
) -> None:
    class Wrong(ExampleTask):
        def signatures(self) -> dict[str, list[str]]:
            return signatures

    with pytest.raises(ValueError, match=said):
        exported(Wrong, tmp_path / "out", example)
    assert not (tmp_path / "out").exists()


def test_a_model_that_predicts_nothing_is_refused(tmp_path: Path) -> None:
    class Silent(ExampleTask):
        def model_fn(self, features: Any, mode: Any) -> Spec:
            return Spec(super().model_fn(features, "train").loss)

    with pytest.raises(ValueError, match="gives no predictions in mode 'predict'"):
        exported(Silent, tmp_path / "out", EXAMPLE)
