"""Exports that the chief of a job, or rank 0, makes with each checkpoint: served, they answer as the trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from monolith.export.export_folder import versions_in
from monolith.export.opened import open_export
from monolith.observe import get_metric_prefix, process_recorder
from monolith.serving import Predictor
from monolith.train import ExportMode, Trainer, TrainerConfig
from train.exact_clicks import ExactClicks, asked, exporting
from train.job_threads import ThreadJob

NAME = "clicks"


def run_job(folder: Path, *, options: dict[str, Any] | None = None, **serving: Any) -> None:
    """Two servers and two workers, with some saves on the way and one at the end."""
    job = ThreadJob(
        folder,
        num_ps=2,
        num_workers=2,
        params=lambda: exporting(**serving),
        options={"model_name": NAME, "save_checkpoints_steps": 60, "checkpoints_max_to_keep": 2, **(options or {})},
    )
    job.run()


def expected(folder: Path) -> torch.Tensor:
    """What the newest checkpoint predicts."""
    found: torch.Tensor = Trainer(ExactClicks, TrainerConfig(model_dir=str(folder))).predict(asked())
    return found


def served(place: Path) -> torch.Tensor:
    with Predictor(str(place)) as predictor:
        assert predictor.num_rows > 0
        return predictor.predict(asked()).outputs["predictions"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shared")
    run_job(folder)
    return folder


@pytest.mark.slow
def test_what_servers_have_is_served_as_it_was_trained(shared: Path) -> None:
    place = shared / "exported_models"
    assert torch.equal(served(place), expected(shared))
    rows = open_export(str(place)).manifest.rows
    assert rows is not None
    assert (rows.kind, Path(rows.path).parent) == ("checkpoint", shared)
    assert not list(place.glob("*/rows"))


def test_exports_of_a_job_come_and_go_with_its_checkpoints(shared: Path) -> None:
    place = shared / "exported_models"
    steps = {int(path.stem.split("-")[1]) for path in shared.glob("model.ckpt-*.manifest")}
    found = [open_export(str(place / str(version))).manifest.step for version in versions_in(str(place))]
    assert sorted(steps) == found
    assert found[-1] == 240
    state = (place / "ExportSaverListenerState").read_text()
    assert state.count("entries") == len(found)
    assert all(f"global_step: {step}\n" in state for step in steps)
    gauge = process_recorder().gauge(f"{get_metric_prefix()}.export_models.latest_version", {"model_name": NAME})
    assert gauge == versions_in(str(place))[-1]


@pytest.mark.slow
def test_shards_of_an_export_are_as_many_as_servers(tmp_path: Path) -> None:
    run_job(tmp_path, export_mode=ExportMode.DISTRIBUTED, shared_embedding=False)
    place = tmp_path / "exported_models"
    versions = versions_in(str(place / "entry"))
    assert sorted(path.name for path in place.iterdir()) == ["entry", "ps_0", "ps_1", "rows"]
    for part in ("ps_0", "ps_1", "rows"):
        assert sorted(int(path.name) for path in (place / part).iterdir() if path.is_dir()) == versions
    for part in ("entry", "ps_0", "ps_1"):
        state = (place / part / "ExportSaverListenerState").read_text()
        assert [f'export_dir: "{place}/{part}/{version}"' in state for version in versions] == [True] * len(versions)
    assert open_export(str(place)).manifest.shards == 2
    assert torch.equal(served(place), expected(tmp_path))
