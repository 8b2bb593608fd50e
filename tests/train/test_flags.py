"""Flags of a program of one's own."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import pytest

from monolith.testing import ExampleTask
from monolith.train import CpuTrainingConfig, Origin, RunConfig, RunnerConfig, make_trainer
from monolith.train.compat.flat_config import FlatConfig
from monolith.train.parameters import flags


@pytest.mark.parametrize("config", [CpuTrainingConfig, RunnerConfig, RunConfig])
def test_every_option_that_text_can_express_has_a_flag(config: type[FlatConfig]) -> None:
    missing = set(config.option_names()) - set(flags.flag_names(config))
    assert missing == ({"device_fn"} if config is not RunConfig else set())
    for name in flags.flag_names(config):
        default = config.default_of(name)
        text = default.name if name == "discovery_type" else str(default)
        if text not in {"", "None"}:
            parsed = flags.parse(config(), [f"--{name}={text}"])
            assert (getattr(parsed, name), parsed.origin(name)) == (default, Origin.FLAG)


def test_code_before_flag_before_environment_before_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run.toml"
    file.write_text("index = 1\nnum_workers = 9\nmodel_name = 'file'\ncluster_type = 'k8s'\n")
    monkeypatch.setenv("MONOLITH_NUM_WORKERS", "8")
    monkeypatch.setenv("MONOLITH_MODEL_NAME", "environment")
    given = ["--index", "2", "--num_workers=7", "--config_file", str(file)]
    made = flags.parse(RunnerConfig(index=4), given)
    assert (made.index, made.num_workers, made.model_name, made.cluster_type) == (4, 7, "environment", "k8s")


def test_a_boolean_needs_no_value() -> None:
    made = flags.parse(RunnerConfig(), ["--clear_nn", "--sort_id", "false"])
    assert (made.clear_nn, made.sort_id) == (True, False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--modeldir", "m"], r"flags: '--modeldir' is no option; did you mean --model_dir\?"),
        (["--modeldir=m"], r"did you mean --model_dir\?"),
        (["extra"], "flags: 'extra' is no option$"),
        (["--index", "x"], "index must be an integer, got 'x'"),
        (["--config_file", "no.toml"], "config file 'no.toml'"),
        (["--save_checkpoints_secs", "1", "--save_checkpoints_steps", "1"], "contradict each other"),
    ],
)
def test_mistakes(arguments: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        flags.parse(RunnerConfig(), arguments)


def test_flags_are_added_alongside_those_of_the_program() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--index", type=float)
    flags.add_flags(parser, RunnerConfig, without={"index"})
    args = parser.parse_args(["--index", "0.5", "--model_dir", "m"])
    made = flags.take_flags(RunnerConfig(), args)
    assert (args.index, made.index, made.model_dir) == (0.5, 0, "m")


def test_a_program_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "m"
    monkeypatch.setattr(sys, "argv", ["program.py", "--model_dir", str(folder), "--save_checkpoints_steps", "2"])
    options = flags.parse(RunnerConfig(model_name="mine", is_local=True))
    make_trainer(options, ExampleTask.params()).train(steps=4)
    assert sorted(path.name for path in folder.glob("*.manifest")) == ["model.ckpt-2.manifest", "model.ckpt-4.manifest"]


def test_a_config_without_a_source_file_has_flags_too() -> None:
    found: dict[str, Any] = {}
    exec(  # noqa: S102 - as typed in at a prompt
        "from monolith.train import RunnerConfig\n"
        "from monolith.train.compat.flat_config import flat_config\n"
        "@flat_config\n"
        "class Mine(RunnerConfig):\n"
        "    depth: int = 3\n",
        found,
    )
    assert flags.parse(found["Mine"](), ["--depth", "5"]).depth == 5
