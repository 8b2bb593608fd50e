"""What an export says of the questions that it can answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import monolith as ml
from monolith.serving import Predictor
from monolith.tables.compressors import Fp32
from monolith.testing import ExampleTask
from monolith.train import Estimator, RunConfig, Spec, Trainer


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
    place = trainer.export(str(folder), example=example)
    found: dict[str, Any] = json.loads((Path(place) / "manifest.json").read_text())
    return found


EXAMPLE = ExampleTask().input_fn("train").make(0)
IDS = {"kind": "ids", "dtype": "int64", "shape": [None], "ragged": False}


def test_without_an_example_the_first_batch_to_predict_is_taken(tmp_path: Path) -> None:
    found = exported(ExampleTask, tmp_path)
    assert (found["format"], found["format_version"], found["name"], found["step"]) == (
        "monolith-export",
        3,
        "ExampleTask",
        3,
    )
    outputs = {"predictions": {"dtype": "float32", "shape": [None]}}
    assert found["signatures"] == {"serving_default": {"inputs": {"user": IDS, "item": IDS}, "outputs": outputs}}


def test_an_example_gives_types_and_shapes(tmp_path: Path) -> None:
    found = exported(TwoAnswers, tmp_path, EXAMPLE)
    assert found["signatures"] == {
        "score": {
            "inputs": {"user": IDS, "item": IDS},
            "outputs": {
                "score": {"dtype": "float32", "shape": [None]},
                "vector": {"dtype": "float32", "shape": [None, 8]},
            },
        }
    }


def test_the_export_is_untouched_by_its_example(tmp_path: Path) -> None:
    trainer = Trainer(ExampleTask)
    rows = trainer.train(steps=3).embeddings["emb"].num_rows
    unseen = {"user": torch.tensor([10**9]), "item": torch.tensor([10**9])}
    with Predictor(trainer.export(str(tmp_path), example=unseen)) as predictor:
        assert predictor.num_rows == rows


def test_an_estimator_and_a_url(tmp_path: Path) -> None:
    with Estimator(TwoAnswers, RunConfig(model_dir=str(tmp_path))) as estimator:
        estimator.train(steps=2)
        place = estimator.export_saved_model("out", example=EXAMPLE)
        assert place.startswith(f"{tmp_path}/out/")
        assert "score" in json.loads((Path(place) / "manifest.json").read_text())["signatures"]
        there = estimator.trainer.export("memory://signatures/m", example=EXAMPLE)
        batch = {"user": EXAMPLE["user"], "item": EXAMPLE["item"]}
        with Predictor(there) as predictor, Predictor("memory://signatures/m") as newest:
            assert newest.predict(batch, "score").version == predictor.predict(batch, "score").version


@pytest.mark.parametrize(
    ("signatures", "example", "said"),
    [
        ({"a": []}, EXAMPLE, "signature 'a': it reads no column"),
        ({"a/b": ["user"]}, EXAMPLE, "signature 'a/b': a name must be that of a file"),
        ({"a": ["user", "itm"]}, EXAMPLE, "column 'itm' is not in the example, which has user, item"),
        (
            {"a": ["user"]},
            EXAMPLE,
            "signature .a.: the model cannot be exported because of .*item.: the batch has no ids",
        ),
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


class WithVectors(ExampleTask):
    """Answers with vectors of users and of both, too."""

    names = ("user_vector", "vectors")

    def build(self) -> None:
        exact = Fp32()
        self.emb = ml.Embeddings({"user": ml.Slot(dim=4, compressor=exact), "item": ml.Slot(dim=4, compressor=exact)})
        self.tower = torch.nn.Linear(4, 2)

    def model_fn(self, features: Any, mode: Any) -> Spec:
        rows = self.emb(features)
        user = self.tower(rows["user"])
        self.add_extra_output(self.names[0], user)
        self.add_extra_output(self.names[1], {"user": user, "item": self.tower(rows["item"])})
        logits = (rows["user"] * rows["item"]).sum(1) + user.sum(1)
        if mode == "predict":
            return Spec(predictions=logits)
        return Spec(torch.nn.functional.binary_cross_entropy_with_logits(logits, features["label"]))


def test_outputs_next_to_predictions_are_separate_signatures(tmp_path: Path) -> None:
    trainer = Trainer(WithVectors)
    trainer.train(steps=3)
    with Predictor(trainer.export(str(tmp_path), example=EXAMPLE)) as predictor:
        signatures = predictor.signatures
        assert signatures.keys() == {"serving_default", "user_vector", "vectors"}
        assert signatures["user_vector"].inputs.keys() == {"user"}
        assert signatures["vectors"].outputs.keys() == {"user", "item"}
        users = predictor.predict({"user": EXAMPLE["user"]}, "user_vector").outputs["predictions"]
        both = predictor.predict({"user": EXAMPLE["user"], "item": EXAMPLE["item"]}, "vectors").outputs
        scores = predictor.predict({"user": EXAMPLE["user"], "item": EXAMPLE["item"]}).outputs["predictions"]
    assert trainer.state is not None
    task = trainer.task
    assert isinstance(task, WithVectors)
    ids = {name: EXAMPLE[name] for name in ("user", "item")}
    with torch.no_grad():
        rows = {name: task.emb.lookup(name, each) for name, each in ids.items() if isinstance(each, torch.Tensor)}
        assert torch.equal(users, task.tower(rows["user"]))
        assert torch.equal(both["item"], task.tower(rows["item"]))
    assert torch.equal(both["user"], users)
    assert torch.equal(scores, trainer.predict(EXAMPLE))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("same", "same"), "there are outputs 'same' already"),
        (("serving_default", "b"), "signature 'serving_default': it has predictions, and outputs were added"),
        (("../up", "b"), "signature '../up': a name must be that of a file"),
    ],
)
def test_outputs_of_a_wrong_name_are_refused(names: tuple[str, str], said: str, tmp_path: Path) -> None:
    class Wrong(WithVectors):
        pass

    Wrong.names = names
    with pytest.raises(ValueError, match=said):
        exported(Wrong, tmp_path / "out", EXAMPLE)
    assert not (tmp_path / "out").exists()


def test_outputs_that_are_no_tensors_are_refused(tmp_path: Path) -> None:
    class Texts(ExampleTask):
        def model_fn(self, features: Any, mode: Any) -> Spec:
            self.add_extra_output("words", {"a": "text"})  # type: ignore[dict-item]
            return super().model_fn(features, mode)

    with pytest.raises(ValueError, match="signature 'words': prediction 'a' must be a tensor, got str"):
        exported(Texts, tmp_path / "out", EXAMPLE)
