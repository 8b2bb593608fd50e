"""Exports that come and go with the checkpoints of a run."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
import torch

from monolith.export.export_folder import ExportRecords, versions_in
from monolith.export.opened import graph_name, open_export
from monolith.export.writer import ExportConfig
from monolith.observe import get_metric_prefix, process_recorder
from monolith.serving import Predictor
from monolith.testing import ExampleTask, FakeClock
from monolith.train import ExportMode, SavingConfig, Spec, Trainer, TrainerConfig
from monolith.train.export.exporting import CheckpointExporter
from train.exact_clicks import ExactClicks, asked, exporting

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


def test_an_export_has_the_weights_of_its_checkpoint_whatever_came_after(tmp_path: Path) -> None:
    saving = SavingConfig(every_steps=3, background=True, max_to_keep=None)
    config = TrainerConfig(model_dir=str(tmp_path), saving=saving)
    Trainer(exporting(shared_embedding=False), config).train(steps=8)
    place = tmp_path / "exported_models"
    steps = []
    for version in versions_in(str(place)):
        export = open_export(str(place / str(version)))
        steps.append(export.manifest.step)
        with Predictor(str(place / str(version))) as predictor:
            found = predictor.predict(asked()).outputs["predictions"]
        again = Trainer(ExactClicks, TrainerConfig(model_dir=str(tmp_path)))
        again.config = TrainerConfig(
            model_dir=str(tmp_path),
            restoring=type(again.config.restoring)(checkpoint=f"model.ckpt-{export.manifest.step}"),
        )
        assert torch.equal(found, again.predict(asked()))
    assert steps == [3, 6, 8]


class Draws(ExactClicks):
    """Its steps depend on the generators of the process, and its building does, too."""

    def model_fn(self, features: Any, mode: Any) -> Spec:
        spec = super().model_fn(features, mode)
        if mode == "train":
            assert spec.loss is not None
            spec.loss = spec.loss * torch.rand(())
        return spec


def test_training_is_the_same_with_exports_and_without(tmp_path: Path) -> None:
    weights = []
    for exports in (False, True):
        params = Draws.params()
        params.serving.export_when_saving = exports
        config = TrainerConfig(
            model_dir=str(tmp_path / str(exports)), saving=SavingConfig(every_steps=2), deterministic=True
        )
        trainer = Trainer(params, config)
        weights.append(trainer.train(steps=5).model["top"].weight.clone())  # type: ignore[index]
    assert torch.equal(*weights)


class Refuses(ExampleTask):
    """Predicts in training alone."""

    def model_fn(self, features: Any, mode: Any) -> Spec:
        if mode == "predict":
            raise RuntimeError("no predictions of this one")
        return super().model_fn(features, mode)


def test_a_model_that_cannot_be_exported_trains_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    params = Refuses.params()
    params.serving.export_when_saving = True
    trainer = Trainer(params, TrainerConfig(model_dir=str(tmp_path), saving=SavingConfig(every_steps=2)))
    with caplog.at_level(logging.ERROR):
        assert trainer.train(steps=4).global_step == 4
    assert "export at step 2" in caplog.text
    assert "no predictions of this one" in caplog.text
    assert versions_in(str(tmp_path / "exported_models")) == []


def test_a_mode_that_exports_nothing_is_refused(tmp_path: Path) -> None:
    trainer = Trainer(exporting(export_mode=ExportMode.NONE), TrainerConfig(model_dir=str(tmp_path)))
    with pytest.raises(
        ValueError, match=r"serving.export_mode must be STANDALONE or DISTRIBUTED .* got <ExportMode.NONE"
    ):
        trainer.train(steps=1)


def test_exports_of_others_stay(tmp_path: Path) -> None:
    """What the state file says of other places is not believed."""
    trainer = Trainer(ExampleTask)
    trainer.train(steps=1)
    other = trainer.export(str(tmp_path / "other"), options=ExportConfig(version=7))
    trainer.export(str(tmp_path / "own"), options=ExportConfig(version=8))
    state = tmp_path / "own" / "ExportSaverListenerState"
    state.write_text(f'entries {{\n export_dir: "{other}"\n global_step: 1\n}}\nentries {{ damaged', encoding="utf-8")
    ExportRecords(str(tmp_path / "own")).retain({2})
    assert versions_in(str(tmp_path / "other")) == [7]
    assert versions_in(str(tmp_path / "own")) == [8]


class Bounded(ExampleTask):
    """Predicts within bounds that training moves: an export has them as numbers of its graph."""

    moves = False
    limit = 100.0  # no prediction comes near it

    def model_fn(self, features: Any, mode: Any) -> Spec:
        spec = super().model_fn(features, mode)
        if mode == "train":
            self.limit += self.moves
        elif spec.predictions is not None:
            spec.predictions = spec.predictions.clamp(max=self.limit)
        return spec


class Moved(Bounded):
    moves = True


@pytest.mark.parametrize(("task", "num_traced"), [(Bounded, 1), (Moved, 3)])
def test_a_graph_is_taken_again_while_the_model_does_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: type[Bounded], num_traced: int
) -> None:
    traced, export = [], torch.export.export

    def counted(*arguments: Any, **options: Any) -> Any:
        traced.append(1)
        return export(*arguments, **options)

    monkeypatch.setattr(torch.export, "export", counted)
    params = task.params()
    params.serving.export_when_saving = True
    saving = SavingConfig(every_steps=2, max_to_keep=None)
    Trainer(params, TrainerConfig(model_dir=str(tmp_path), saving=saving)).train(steps=6)
    place = tmp_path / "exported_models"
    versions = versions_in(str(place))
    assert (len(versions), len(traced)) == (3, num_traced)
    graphs, weights = (
        {(place / str(version) / name).read_bytes() for version in versions}
        for name in (graph_name("serving_default"), "weights.safetensors")
    )
    assert (len(graphs), len(weights)) == (num_traced, 3)


def test_an_export_whose_graph_was_taken_again_has_the_bytes_of_one_whose_was_not(tmp_path: Path) -> None:
    saving = SavingConfig(every_steps=2, max_to_keep=None)
    trainer = Trainer(ExactClicks, TrainerConfig(model_dir=str(tmp_path), saving=saving))
    trainer.train(steps=4)
    kept = CheckpointExporter(trainer.task)
    for step in (2, 4):
        for exporter, name in ((kept, "kept"), (CheckpointExporter(trainer.task), "anew")):
            options = ExportConfig(version=step, clock=FakeClock())
            exporter.export(str(tmp_path / f"model.ckpt-{step}"), str(tmp_path / name), shared=True, options=options)
    for step in (2, 4):
        files = [path.relative_to(tmp_path / "kept") for path in (tmp_path / "kept" / str(step)).rglob("*.*")]
        assert len(files) > 4
        for file in files:
            assert (tmp_path / "kept" / file).read_bytes() == (tmp_path / "anew" / file).read_bytes(), file
