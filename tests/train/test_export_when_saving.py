"""Exports that come and go with the checkpoints of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from monolith.export.export_folder import versions_in
from monolith.observe import get_metric_prefix, process_recorder
from monolith.serving import Predictor
from monolith.testing import ExampleTask
from monolith.train import SavingConfig, Trainer, TrainerConfig

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("shared", [True, False])
def test_exports_come_and_go_with_their_checkpoints(tmp_path: Path, shared: bool) -> None:
    params = ExampleTask.params()
    params.serving.export_when_saving = True
    params.serving.shared_embedding = shared
    saving = SavingConfig(every_steps=2, max_to_keep=2)
    trainer = Trainer(params, TrainerConfig(model_dir=str(tmp_path), saving=saving, model_name="clicks"))
    trainer.train(steps=6)
    place = tmp_path / "exported_models"
    versions = versions_in(str(place))
    assert len(versions) == 2
    state = (place / "ExportSaverListenerState").read_text()
    assert [f"global_step: {step}" in state for step in (2, 4, 6)] == [False, True, True]
    assert all(f'export_dir: "{place}/{version}"' in state for version in versions)
    assert (place / str(versions[-1]) / "rows").exists() is not shared
    with Predictor(str(place)) as predictor:
        assert predictor.version.export == versions[-1]
        assert predictor.num_rows > 0
        assert predictor.signatures["serving_default"].inputs.keys() == {"user", "item"}
    name = f"{get_metric_prefix()}.export_models.latest_version"
    assert process_recorder().gauge(name, {"model_name": "clicks"}) == versions[-1]
