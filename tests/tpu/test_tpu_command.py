"""``monolith tpu``: its flags, what it prints, and what it says when it cannot."""

from __future__ import annotations

import json
from dataclasses import fields
from importlib import metadata
from pathlib import Path

import pytest

from monolith.cli import main
from monolith.cli._arguments.tpu import FLAGS, MODES
from monolith.tpu import TpuConfig, options

TASK = ["tpu", "--task", "monolith.testing:ExampleTask"]


def test_every_option_has_its_flag_with_the_same_default() -> None:
    defaults = {each.name: each.default for each in fields(TpuConfig)}
    assert {flag.name: flag.default for flag in FLAGS} | {"task": None, "mode": "train"} == defaults
    assert MODES == options.MODES


def test_training_and_evaluation_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--model_dir", str(tmp_path), "--json", "--cpu_test"]
    assert main([*TASK, *place]) == 0
    assert json.loads(capsys.readouterr().out) == {"global_step": 20, "rows": 956, "model_dir": str(tmp_path)}


def test_a_trial_run_without_a_model_dir_reports_that_nothing_is_saved(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TASK, "--cpu_test=true"]) == 0
    assert "step 20 with 956 rows was tried, and not saved: there is no --model_dir" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([*TASK], "--model_dir: set the directory of the model"),
        (["tpu", "--cpu_test"], "--task: name the task to run"),
        ([*TASK, "--cpu_test", "--mode", "train_and_eval"], "--mode train_and_eval is not supported"),
        ([*TASK, "--cpu_test", "--partition_strategy", "div"], "is refused"),
        (["tpu", "--cpu_test", "--task", "monolith.testing:ExamplTask"], "ExampleTask"),
    ],
)
def test_wrong_calls_are_one_line(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("monolith tpu: error: ")
    assert error.count("\n") == 1
    assert text in error


def test_a_flag_that_is_neither_true_nor_false_is_not_understood(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*TASK, "--cpu_test=perhaps"])
    assert ended.value.code == 2
    assert "true or false expected, got 'perhaps'" in capsys.readouterr().err


def test_without_jax_the_error_contains_the_install_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def version(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", version)
    assert main([*TASK, "--cpu_test"]) == 1
    said = "tpu: the package 'jax' is not installed; pip install 'monolith-torch[tpu]'"
    assert capsys.readouterr().err == f"monolith tpu: error: {said}\n"
