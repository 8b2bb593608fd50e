"""``monolith checkpoint export --serving``: a checkpoint as a model that answers without its code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from monolith.cli import main
from monolith.data import TextColumn
from monolith.export.opened import open_export
from monolith.serving import Predictor
from monolith.train import RestoringConfig, SavingConfig, Trainer, TrainerConfig
from train.exact_clicks import ExactClicks, asked

TASK = "train.exact_clicks:ExactClicks"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    saving = SavingConfig(every_steps=4, dense_every_steps=3)
    Trainer(ExactClicks, TrainerConfig(model_dir=str(folder), saving=saving)).train(steps=8)
    return folder


def expected(folder: Path, checkpoint: str) -> torch.Tensor:
    restoring = RestoringConfig(checkpoint=checkpoint)
    found: torch.Tensor = Trainer(ExactClicks, TrainerConfig(model_dir=str(folder), restoring=restoring)).predict(
        asked()
    )
    return found


def served(path: Path | str) -> torch.Tensor:
    with Predictor(str(path)) as predictor:
        return predictor.predict(asked()).outputs["predictions"]


def call(*arguments: object) -> int:
    return main(["checkpoint", "export", *map(str, arguments)])


@pytest.mark.slow
def test_the_newest_checkpoint_is_served(model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(model_dir, tmp_path, "--serving", "--task", TASK) == 0
    told = capsys.readouterr()
    folder = told.out.strip()
    assert torch.equal(served(folder), expected(model_dir, "model.ckpt-8"))
    assert "rows (100 %)" in told.err


def test_a_chosen_one_in_parts_over_the_rows_of_the_checkpoint(
    model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = tmp_path / "example.json"
    example.write_text(json.dumps({"inputs": {"user": [7, 8], "item": [[5], [6]]}}))
    arguments = ["--serving", "--task", TASK, "--shards", 2, "--version", 5, "--shared_embedding", "--json"]
    assert call(model_dir / "model.ckpt-4", tmp_path / "out", *arguments, "--example", example) == 0
    told = capsys.readouterr()
    assert json.loads(told.out) == {
        "checkpoint": str(model_dir / "model.ckpt-4"),
        "step": 4,
        "kind": "full",
        "folder": str(tmp_path / "out" / "entry" / "5"),
    }
    assert told.err == ""
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["entry", "ps_0", "ps_1"]
    assert torch.equal(served(tmp_path / "out"), expected(model_dir, "model.ckpt-4"))
    assert call(model_dir / "model.ckpt-4", tmp_path / "again", *arguments, "--example", example.read_text()) == 0
    assert torch.equal(served(tmp_path / "again"), expected(model_dir, "model.ckpt-4"))


@pytest.mark.parametrize("items", [["x", "y"], [["x"], ["y", "z"]]])
def test_an_example_with_texts_makes_a_model_that_takes_texts(
    model_dir: Path, tmp_path: Path, items: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    example = json.dumps({"user": ["ann", "bob"], "item": items})
    assert call(model_dir, tmp_path, "--serving", "--task", TASK, "--example", example) == 0
    inputs = open_export(capsys.readouterr().out.strip()).manifest.signatures["serving_default"].inputs
    assert {name: each.texts for name, each in inputs.items()} == {name: TextColumn(name) for name in ("user", "item")}
    assert inputs["item"].ragged == isinstance(items[0], list)
    with Predictor(str(tmp_path)) as predictor:
        assert predictor.predict({"user": ["ann", "bob"], "item": items}).outputs["predictions"].shape == (2,)


def test_one_without_tables_makes_weights_alone(model_dir: Path, tmp_path: Path) -> None:
    assert call(model_dir / "model.ckpt-4", tmp_path, "--serving", "--task", TASK, "--version", 4) == 0
    assert call(model_dir / "dense_only" / "model.ckpt-6", tmp_path, "--serving", "--task", TASK, "--version", 6) == 0
    assert open_export(str(tmp_path / "6")).manifest.kind == "dense"
    assert not torch.equal(served(tmp_path), expected(model_dir, "model.ckpt-4"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--serving"], "give the task that makes the model: --task module:Class"),
        (["--task", TASK], "--task is about a model to serve; give --serving, too"),
        (["--serving", "--task", TASK, "--shards", "-1"], "shards"),
        (["--serving", "--task", "train.exact_clicks:Nobody"], "has no 'Nobody'"),
        (["--serving", "--task", TASK, "--example", "nowhere.json"], "'nowhere.json': cannot be read"),
    ],
)
def test_export_errors_are_reported(
    model_dir: Path, tmp_path: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(model_dir, tmp_path, *arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("monolith checkpoint: error: ")
    assert told in error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"user": 7}',
        '{"user": ["a"]}',
        '{"user": [[1], 2]}',
        '{"user": []}',
        '{"user": [7]}',
        '{"user": ["a", 7], "item": [1, 2]}',
        '{"user": [["a"], "b"], "item": [1, 2]}',
        '{"user": ["a"], "item": [1, 2]}',
    ],
)
def test_an_example_that_is_none_is_refused(
    model_dir: Path, tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    example = tmp_path / "example.json"
    example.write_text(text)
    assert call(model_dir, tmp_path / "out", "--serving", "--task", TASK, "--example", example) == 1
    assert re.search(r"^monolith checkpoint: error: (example|export|signature)", capsys.readouterr().err, re.MULTILINE)
    assert not (tmp_path / "out").exists()


def test_a_directory_without_checkpoints_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(tmp_path, tmp_path / "out", "--serving", "--task", TASK) == 1
    assert "neither a checkpoint" in capsys.readouterr().err
