"""Checkpoints without tables make exports without rows, which are served over the rows before them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from monolith.checkpoint.inspection import SavedState
from monolith.export.export_folder import versions_in
from monolith.export.opened import open_export
from monolith.hook import Hook, StepContext
from monolith.serving import Predictor
from monolith.train import ExportMode, RestoringConfig, SavingConfig, Trainer, TrainerConfig
from train.exact_clicks import ExactClicks, asked, exporting

LIMIT_SECONDS = 60


class AskAtSteps(Hook):
    """Opens a predictor at step 4, and asks it at step 6, when it has the newest version."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.answer = torch.empty(0)
        self.kinds: list[str] = []

    def after_run(self, context: StepContext) -> None:
        if context.global_step == 2:
            assert not versions_in(str(self._place)), "there is no export with rows yet"
        if context.global_step == 4:
            self.predictor = Predictor(str(self._place))
        if context.global_step == 6:
            with self.predictor:
                newest = versions_in(str(self._place))[-1]
                waited = threading.Event()
                for _ in range(LIMIT_SECONDS * 20):
                    if self.predictor.version.export == newest:
                        break
                    waited.wait(0.05)
                self.answer = self.predictor.predict(asked()).outputs["predictions"]
                self.kinds = [
                    open_export(str(self._place / str(each))).manifest.kind for each in versions_in(str(self._place))
                ]


@pytest.mark.slow
@pytest.mark.parametrize("mode", [ExportMode.STANDALONE, ExportMode.DISTRIBUTED])
def test_dense_weights_alone_are_activated_while_training_continues(tmp_path: Path, mode: ExportMode) -> None:
    saving = SavingConfig(every_steps=4, dense_every_steps=2)
    place = tmp_path / "exported_models"
    asks = AskAtSteps(place if mode is ExportMode.STANDALONE else place / "entry")
    config = TrainerConfig(model_dir=str(tmp_path), saving=saving)
    Trainer(exporting(export_mode=mode), config, hooks=[asks]).train(steps=7)
    assert asks.kinds[-1] == "dense"

    rows = Trainer(
        ExactClicks, TrainerConfig(model_dir=str(tmp_path), restoring=RestoringConfig(checkpoint="model.ckpt-4"))
    )
    before = rows.predict(asked())
    weights = SavedState(str(tmp_path / "dense_only" / "model.ckpt-6")).weights()
    assert rows.state is not None
    assert rows.state.model is not None
    rows.state.model.load_state_dict(
        {name: each for name, each in weights.items() if name.startswith("top.")}, strict=False
    )
    assert torch.equal(asks.answer, rows.predict(asked()))
    assert not torch.equal(asks.answer, before)
