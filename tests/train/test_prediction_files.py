"""Files of predictions: every row once, beside its keys, in the format of the name, complete or not there."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from monolith.errors import InvalidArgumentError, NotFoundError, ResourceExhaustedError, UnimplementedError
from monolith.hook import Hook, StepContext
from monolith.tensors import Ragged
from monolith.testing import ExampleTask
from monolith.train import Spec, Trainer, TrainerConfig
from monolith.train.predict import prediction as prediction_files
from monolith.train.predict.prediction import PredictionColumns

FORMATS = ["predictions.parquet", "predictions.csv", "predictions.jsonl"]


def read_csv(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [{name: json.loads(value) for name, value in row.items()} for row in csv.DictReader(file)]


READ: dict[str, Callable[[Path], list[dict[str, Any]]]] = {
    ".parquet": lambda path: pq.read_table(path).to_pylist(),
    ".csv": read_csv,
    ".jsonl": lambda path: [json.loads(line) for line in path.read_text().splitlines()],
}


def trained(task: ExampleTask | None = None) -> Trainer:
    trainer = Trainer(ExampleTask() if task is None else task)
    trainer.train(steps=3)
    return trainer


def test_a_row_group_has_65536_rows_or_more(tmp_path: Path) -> None:
    file = prediction_files.ParquetPredictions(tmp_path / "p.parquet")
    for size in (40_000, 25_535, 1, 65_536, 7):
        file.write({"p": np.zeros(size, np.float32)})
    file.close()
    groups = pq.ParquetFile(tmp_path / "p.parquet").metadata
    assert [groups.row_group(number).num_rows for number in range(groups.num_row_groups)] == [65_536, 65_536, 7]


@pytest.mark.parametrize("name", FORMATS)
def test_every_row_is_written_once_next_to_its_keys(tmp_path: Path, name: str) -> None:
    trainer = trained()
    assert trainer.write_predictions(tmp_path / name, keys=["user", "item"]) == 640
    rows = READ[Path(name).suffix](tmp_path / name)
    batches = [ExampleTask().input_fn("predict").make(number) for number in range(20)]
    assert [list(row) for row in rows[:1]] == [["user", "item", "prediction"]]
    for key in ("user", "item"):
        values = [batch[key] for batch in batches]
        assert [row[key] for row in rows] == [number for each in values for number in torch.as_tensor(each).tolist()]
    predicted = torch.cat(list(trainer.predict()))
    assert torch.equal(torch.tensor([row["prediction"] for row in rows]), predicted)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", FORMATS)
def test_steps_bound_the_rows_and_a_file_of_the_name_is_replaced(tmp_path: Path, name: str) -> None:
    trainer = trained()
    (tmp_path / name).write_text("old")
    assert trainer.write_predictions(tmp_path / name, steps=2) == 64
    assert len(READ[Path(name).suffix](tmp_path / name)) == 64


class ManyHeads(ExampleTask):
    """Predicts two things by name, one of them three numbers."""

    def model_fn(self, features: Any, mode: Any) -> Spec:
        spec = super().model_fn(features, mode)
        if mode != "predict":
            return spec
        click = spec.predictions
        return Spec(predictions={"click": click[:, None], "kinds": torch.stack([click, -click, 2 * click], dim=1)})


def test_several_outputs_become_columns(tmp_path: Path) -> None:
    trainer = trained(ManyHeads())
    for name in FORMATS:
        trainer.write_predictions(tmp_path / name, steps=1)
    rows = {Path(name).suffix: READ[Path(name).suffix](tmp_path / name) for name in FORMATS}
    assert list(rows[".parquet"][0]) == list(rows[".jsonl"][0]) == ["click", "kinds"]
    assert list(rows[".csv"][0]) == ["click", "kinds_0", "kinds_1", "kinds_2"]
    for one, other, third in zip(rows[".parquet"], rows[".jsonl"], rows[".csv"], strict=True):
        click = torch.tensor(one["click"])
        expected = [click, -click, 2 * click]
        for kinds in (one["kinds"], other["kinds"], [third[f"kinds_{place}"] for place in range(3)]):
            assert torch.equal(torch.tensor(kinds), torch.stack(expected))


def test_numbers_of_text_files_have_no_more_digits_than_they_need(tmp_path: Path) -> None:
    file = prediction_files.CsvPredictions(tmp_path / "p.csv")
    file.write({"p": torch.tensor([0.1, 1e-8, float("nan")]).numpy()})
    file.close()
    assert (tmp_path / "p.csv").read_text() == "p\n0.1\n1e-08\nnan\n"
    lines = prediction_files.JsonLinesPredictions(tmp_path / "p.jsonl")
    lines.write({"p": torch.tensor([0.1, float("inf")]).numpy()})
    lines.close()
    assert (tmp_path / "p.jsonl").read_text() == '{"p": 0.1}\n{"p": null}\n'


def test_row_groups_are_large_however_small_the_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction_files, "_ROW_GROUP_ROWS", 100)
    trained().write_predictions(tmp_path / "p.parquet")
    assert pq.ParquetFile(tmp_path / "p.parquet").num_row_groups == 5  # four batches of 32 are 128


@pytest.mark.parametrize("name", FORMATS)
def test_no_rows_are_a_file_without_rows(tmp_path: Path, name: str) -> None:
    assert trained().write_predictions(tmp_path / name, steps=0) == 0
    assert READ[Path(name).suffix](tmp_path / name) == []


def columns_of(*batches: Mapping[str, Any], keys: list[str]) -> list[dict[str, Any]]:
    made = PredictionColumns(keys)
    return [
        {name: list(column) for name, column in made.of(batch, torch.zeros(2)).items() if name != "prediction"}
        for batch in batches
    ]


def test_keys_of_every_kind_of_column() -> None:
    batch = {
        "one": Ragged.from_lists([[7], [8]]),
        "many": Ragged.from_lists([[1, 2], []]),
        "text": [b"caf\xc3\xa9", b"\xff"],
        "column": torch.tensor([[3], [4]]),
    }
    (made,) = columns_of(batch, keys=list(batch))
    assert made == {"one": [7, 8], "many": [[1, 2], []], "text": ["café", "\\xff"], "column": [3, 4]}


def test_a_key_with_one_value_a_row_stays_so() -> None:
    first, gap = {"user": Ragged.from_lists([[7], [8]])}, {"user": Ragged.from_lists([[], [9]])}
    assert columns_of(first, gap, keys=["user"]) == [{"user": [7, 8]}, {"user": [None, 9]}]
    with pytest.raises(InvalidArgumentError, match=r"'user': it had one value in each row so far, got \[1, 2\]"):
        columns_of(first, {"user": Ragged.from_lists([[1, 2], [3]])}, keys=["user"])


@pytest.mark.parametrize(
    ("keys", "predictions", "message"),
    [
        (["usr"], torch.zeros(2), "'usr': the batch has no such column; did you mean 'user'?"),
        (["zip"], torch.zeros(2), "'zip': the batch has no such column; it has user"),
        (["user", "user"], torch.zeros(2), "key columns must differ, got 'user' more than once"),
        (["user"], {"user": torch.zeros(2)}, "'user': a prediction has this name, too"),
        (["user"], torch.zeros(3), r"one for each row of the batch, got {'user': 2, 'prediction': 3}"),
        (["user"], torch.zeros(2, 2, 2), r"'prediction': one or several numbers a row are needed, got \[2, 2, 2\]"),
        (["user"], None, "'prediction': a tensor is needed, got NoneType; let model_fn return"),
    ],
)
def test_what_makes_no_columns_is_refused(keys: list[str], predictions: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        PredictionColumns(keys).of({"user": torch.tensor([1, 2])}, predictions)


def test_predictions_that_change_their_names_are_refused() -> None:
    made = PredictionColumns()
    made.of({}, {"a": torch.zeros(2)})
    with pytest.raises(InvalidArgumentError, match=r"got \['b'\] after \['a'\]"):
        made.of({}, {"b": torch.zeros(2)})


class FailAt(Hook):
    """Raises after a batch."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def after_run(self, context: StepContext) -> None:
        raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), FileNotFoundError("the input's"), ValueError("the model's")])
def test_an_error_while_writing_is_raised_unchanged_and_keeps_the_old_file(
    tmp_path: Path, error: BaseException
) -> None:
    path = tmp_path / "p.csv"
    path.write_text("old")
    with pytest.raises(type(error)) as raised:
        trained().write_predictions(path, hooks=[FailAt(error)])
    assert raised.value is error
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_name_without_a_known_format_and_a_missing_folder_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"expected one of \.parquet, \.csv, \.jsonl, got '\.txt'"):
        trained().write_predictions(tmp_path / "p.txt")
    with pytest.raises(NotFoundError, match="there is no folder"):
        trained().write_predictions(tmp_path / "no" / "p.csv")


def test_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(self: object, columns: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prediction_files.CsvPredictions, "write", write)
    with pytest.raises(ResourceExhaustedError, match=r"p\.csv': cannot be written: No space left on device"):
        trained().write_predictions(tmp_path / "p.csv")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_pyarrow_raises_an_error_that_suggests_alternatives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        UnimplementedError, match=r"pip install 'monolith-torch\[parquet\]', or write a \.csv or \.jsonl"
    ):
        trained().write_predictions(tmp_path / "p.parquet")


def test_one_batch_in_predictions_out() -> None:
    trainer = trained()
    batch = ExampleTask().input_fn("predict").make(4)
    assert torch.equal(trainer.predict(batch), list(trainer.predict())[4])
    plain = {"user": torch.tensor([1, 2]), "item": torch.tensor([3, 10**6])}
    rows = trainer.state.embeddings["emb"].num_rows if trainer.state else 0
    assert trainer.predict(plain).shape == (2,)
    assert trainer.state is not None
    assert trainer.state.embeddings["emb"].num_rows == rows
    with pytest.raises(ValueError, match="steps counts batches of the input, got 3 together with a batch"):
        trainer.predict(batch, steps=3)  # type: ignore[call-overload]


def test_one_batch_is_predicted_by_the_newest_checkpoint(tmp_path: Path) -> None:
    config = TrainerConfig(model_dir=str(tmp_path))
    trained = Trainer(ExampleTask(), config)
    trained.train(steps=3)
    batch = ExampleTask().input_fn("predict").make(0)
    assert torch.equal(Trainer(ExampleTask(), config).predict(batch), trained.predict(batch))
