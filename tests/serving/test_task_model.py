"""A task that cannot be exported is served with its code, and answers as the trainer does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from monolith.errors import InvalidArgumentError, NotFoundError, UnavailableError
from monolith.serving import TaskModel
from monolith.serving.server.model_threads import is_merged
from monolith.tensors import Ragged
from monolith.testing import ExampleTask, NumberedBatches
from monolith.train import Spec, Trainer, TrainerConfig
from serving.branches_task import Branches, NamesColumns

WAIT = 60.0
BATCH: Any = NumberedBatches(num_batches=4).make(3)
COLUMNS = {"user": BATCH["user"], "item": BATCH["item"]}


def train(task: type, folder: Path, steps: int) -> Trainer:
    trainer = Trainer(task, TrainerConfig(model_dir=str(folder)))
    trainer.train(steps=steps)
    return trainer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("branches")
    train(Branches, folder, 5)
    return folder


@pytest.fixture
def model(folder: Path) -> Iterator[TaskModel]:
    with TaskModel(Branches, str(folder)) as model:
        yield model


def wait_until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(WAIT / 0.02)):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError("it did not come to pass")


def test_it_answers_as_the_trainer_bit_for_bit(model: TaskModel, folder: Path) -> None:
    trainer = Trainer(Branches, TrainerConfig(model_dir=str(folder)))
    for size in (1, 2, 32):  # one alone is below the bound of the branch, many are above
        inputs = {name: values[:size] for name, values in COLUMNS.items()}
        expected = trainer.predict(inputs)
        answer = model.predict(inputs)
        assert torch.equal(answer.outputs["predictions"], expected)
        assert answer.version == (5, -1, {})
    many = model.predict(COLUMNS).outputs["predictions"]
    one = model.predict({name: values[:1] for name, values in COLUMNS.items()}).outputs["predictions"]
    assert not torch.allclose(many[:1], one), "the branch was taken for many alone"
    assert (model.name, model.version.export) == ("Branches", 5)
    assert model.num_rows > 0
    assert model.memory_bytes > 0
    assert model.is_ready
    assert not is_merged(model), "what it answers depends on what is asked with it"


def test_signatures_are_those_of_the_task_with_the_types_of_its_input(model: TaskModel, tmp_path: Path) -> None:
    (signature,) = model.signatures.values()
    assert {name: (each.kind, each.dtype, each.shape) for name, each in signature.inputs.items()} == {
        "user": ("ids", "int64", (None,)),
        "item": ("ids", "int64", (None,)),
    }
    assert signature.outputs["predictions"].shape == (None,)
    trainer = train(NamesColumns, tmp_path, 2)
    with TaskModel(NamesColumns, str(tmp_path)) as named:
        assert sorted(named.signatures) == ["scores", "twice"]
        assert sorted(named.signatures["scores"].outputs) == ["rows", "score"]
        assert named.signatures["twice"].inputs["label"].kind == "dense"
        assert named.signatures["twice"].inputs["item"].kind == "ids"
        answer = named.predict({**COLUMNS, "label": [1.0] * 32}, "twice")
        expected = trainer.predict({**COLUMNS, "label": torch.ones(32)})
        assert all(torch.equal(answer.outputs[name], expected[name]) for name in expected)
        with pytest.raises(NotFoundError, match="has no signature 'serving_default', it has scores, twice"):
            named.predict(COLUMNS)


def test_a_column_for_all_lists_and_rows_of_ids_are_taken(model: TaskModel) -> None:
    wanted = model.predict({"user": torch.full((32,), 7), "item": COLUMNS["item"]}).outputs["predictions"]
    given: list[dict[str, Any]] = [
        {"user": [7], "item": COLUMNS["item"].tolist()},
        {"user": Ragged.from_lists([[7]]), "item": Ragged.from_lists([[each] for each in COLUMNS["item"].tolist()])},
        {"user": Ragged.from_lists([[7]]), "item": COLUMNS["item"].numpy()},
    ]
    for inputs in given:
        assert torch.equal(model.predict(inputs).outputs["predictions"], wanted)
    several = model.predict({"user": [[7, 8], []], "item": [[5], [5, 6]]}).outputs["predictions"]
    assert several.shape == (2,)


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        ({"user": [1]}, "input 'item' is missing"),
        ({"user": [1], "item": [1], "label": [1.0]}, "input 'label' is none of signature"),
        ({"user": [1, 2], "item": [1, 2, 3]}, "3 examples expected"),
        ({"user": [1.5], "item": [1]}, "ids must be int64"),
        ({"user": ["a"], "item": [1]}, "numbers expected"),
        ({"user": [], "item": []}, "has no examples"),
        ({"user": [2**63], "item": [1]}, "input 'user'"),
        (b"\x18\x01", "encoded samples are read by exports alone"),
        ({"examples": [b""]}, "encoded samples are read by exports alone"),
    ],
)
def test_wrong_inputs_are_named(model: TaskModel, inputs: Any, sentence: str) -> None:
    with pytest.raises(InvalidArgumentError, match=sentence):
        model.predict(inputs)
    assert model.predict(COLUMNS).version.export == 5


@pytest.mark.slow
def test_a_newer_checkpoint_is_activated_without_a_failed_call(tmp_path: Path) -> None:
    train(Branches, tmp_path, 2)
    failures: list[BaseException] = []
    seen: dict[int, bytes] = {}
    stop = threading.Event()
    with TaskModel(Branches, str(tmp_path)) as model:

        def ask() -> None:
            while not stop.wait(0.002):
                try:
                    answer = model.predict(COLUMNS)
                    seen.setdefault(answer.version.export, bytes(answer.outputs["predictions"].numpy()))
                except BaseException as error:  # noqa: BLE001 - each is one too many
                    failures.append(error)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        trainer = train(Branches, tmp_path, 3)
        wait_until(lambda: 5 in seen)
        stop.set()
        for thread in threads:
            thread.join(WAIT)
        assert failures == []
        assert seen[5] == bytes(trainer.predict(BATCH).numpy())
        assert model.problem is None
        (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-99"\n')
        wait_until(lambda: model.problem is not None)
        assert model.predict(COLUMNS).version.export == 5
    with pytest.raises(UnavailableError, match="it is closed"):
        model.predict(COLUMNS)


class Fails(ExampleTask):
    def model_fn(self, features: Any, mode: Any) -> Spec:
        spec = super().model_fn(features, mode)
        if mode == "predict" and 13 in features["user"].tolist():
            raise RuntimeError("bad luck")
        return spec


class PredictsTexts(ExampleTask):
    def model_fn(self, features: Any, mode: Any) -> Spec:
        return Spec(predictions=["a"]) if mode == "predict" else super().model_fn(features, mode)


def test_what_the_code_raises_reaches_the_caller_and_what_it_cannot_answer_is_refused(tmp_path: Path) -> None:
    train(Fails, tmp_path, 1)
    with TaskModel(Fails, str(tmp_path)) as model:
        with pytest.raises(RuntimeError, match="bad luck"):
            model.predict({"user": [13], "item": [1]})
        assert model.predict({"user": [12], "item": [1]}).outputs["predictions"].shape == (1,)
        model.close()
        model.close()
        assert model.why_not_ready == "it is closed"
    with pytest.raises(InvalidArgumentError, match="must be a tensor, got list"):
        TaskModel(PredictsTexts, str(tmp_path))
    with pytest.raises(NotFoundError, match="has no checkpoint; train the task first"):
        TaskModel(Fails, str(tmp_path / "nothing"))
