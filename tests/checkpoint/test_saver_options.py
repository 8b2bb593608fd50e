"""Each option of a saver is defined once, for the saver itself and for the config of a trainer."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from monolith import checkpoint
from monolith.checkpoint import (
    PsMonitor,
    RestoreConfig,
    Saver,
    SaverConfig,
)
from monolith.checkpoint.options import CheckpointConfig
from monolith.train import RestoringConfig, SavingConfig, SingleProcess, TrainerConfig

TOLD: dict[str, Any] = {
    "max_to_keep": 3,
    "keep_every_hours": 2.0,
    "background": True,
    "restoring": RestoringConfig(reshape=True, alias_rules=[("a", "b")]),
}


def options_of(saver: Saver | None) -> SaverConfig:
    assert saver is not None
    return saver._options


def test_a_saver_has_the_defaults_of_its_options(tmp_path: Path) -> None:
    found, default = options_of(Saver(tmp_path)), SaverConfig()
    for each in fields(SaverConfig):
        if each.name != "clock":
            assert getattr(found, each.name) == getattr(default, each.name)


def test_the_former_saver_of_partial_recovery_takes_them_too(tmp_path: Path) -> None:
    monitor = PsMonitor({"top": "/job:ps/task:0"})
    with pytest.warns(DeprecationWarning, match="PartialRecoverySaver is deprecated .*: use Saver$"):
        former = checkpoint.PartialRecoverySaver  # type: ignore[attr-defined]  # deprecated
    saver = former(tmp_path, ps_monitor=monitor, basename="kept", dense_only=True, **TOLD)
    found = options_of(saver)
    assert {name: getattr(found, name) for name in TOLD} == TOLD
    assert (found.basename, saver.dense_only, found.ps_monitor) == ("kept", True, monitor)


def test_an_unknown_one_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="unknown option 'max_keep'; did you mean 'max_to_keep'"):
        Saver(tmp_path, max_keep=3)  # type: ignore[call-arg]


def test_the_options_of_a_trainer_reach_its_saver(tmp_path: Path) -> None:
    saving = SavingConfig(**{each.name: TOLD[each.name] for each in fields(CheckpointConfig)})
    config = TrainerConfig(model_dir=str(tmp_path), saving=saving, restoring=TOLD["restoring"])
    strategy = SingleProcess()
    strategy.join(config)
    found = options_of(strategy.open_saver())
    assert {name: getattr(found, name) for name in TOLD} == TOLD


def test_the_configs_of_a_trainer_are_those_of_the_saver() -> None:
    assert issubclass(SavingConfig, CheckpointConfig)
    assert issubclass(RestoringConfig, RestoreConfig)
    assert SavingConfig().max_to_keep == SaverConfig().max_to_keep
    assert (SavingConfig().keep_every_hours, SaverConfig().keep_every_hours) == (24.0, None)


@pytest.mark.parametrize("kept", [0, -1])
def test_a_run_keeps_one_at_least_or_all(kept: int) -> None:
    with pytest.raises(ValueError, match=f"max_to_keep must be >= 1, got {kept}"):
        SavingConfig(max_to_keep=kept)
    assert SavingConfig(max_to_keep=None).max_to_keep is None
