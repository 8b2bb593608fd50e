"""Exports that rank 0 makes with the checkpoints of a synchronous run: served, they answer as the trained model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from checkpoint.zygote import Zygote
from monolith.export.export_folder import versions_in
from monolith.export.opened import open_export
from monolith.serving import Predictor
from monolith.train import Trainer, TrainerConfig
from monolith.train.config.job_config import SyncConfig
from programs import Programs
from train.exact_clicks import ExactClicks, asked
from train.partial_jobs import PartialJob
from train.sync_ranks import results_of, run_ranks

pytestmark = pytest.mark.slow

CASES = ["together", "apart", "copied"]


@pytest.fixture(scope="module")
def two(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    run_ranks(programs, "export_rank_cases", folder, CASES, size=2)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_what_ranks_have_is_served_as_it_was_trained(two: Path, case: str) -> None:
    assert results_of(two, case) == [6, 6]
    folder = two / case / "model"
    sync = None if case == "together" else SyncConfig(own_folders="")
    expected = Trainer(ExactClicks, TrainerConfig(model_dir=str(folder), sync=sync)).predict(asked())
    with Predictor(str(folder / "exported_models")) as predictor:
        assert predictor.version.export == 6
        assert torch.equal(predictor.predict(asked()).outputs["predictions"], expected)


@pytest.fixture(scope="module")
def over_servers(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks whose rows are on two servers."""
    folder = tmp_path_factory.mktemp("partial")
    with PartialJob(zygote, folder, "exports") as job:
        for index in range(2):
            job.start_server(index)
        assert job.run_ranks() == [4, 4]
    return folder / "exports" / "model"


def test_rows_on_servers_are_exported_by_the_first_rank(over_servers: Path) -> None:
    folder = over_servers
    expected = Trainer(ExactClicks, TrainerConfig(model_dir=str(folder))).predict(asked())
    with Predictor(str(folder / "exported_models")) as predictor:
        assert predictor.version.export == 4
        assert torch.equal(predictor.predict(asked()).outputs["predictions"], expected)


def test_versions_are_steps_and_go_with_their_checkpoints(two: Path) -> None:
    results_of(two, "together")
    place = two / "together" / "model" / "exported_models"
    kinds = {version: open_export(str(place / str(version))).manifest.kind for version in versions_in(str(place))}
    assert kinds == {4: "standalone", 5: "dense", 6: "standalone"}, "rows of step 2 are gone, and weights over them"
    state = (place / "ExportSaverListenerState").read_text()
    assert [f"global_step: {step}\n" in state for step in range(1, 7)] == [False, False, False, True, True, True]


def test_parts_are_as_many_as_ranks_have_rows(two: Path) -> None:
    results_of(two, "apart")
    place = two / "apart" / "model" / "exported_models"
    assert sorted(path.name for path in place.iterdir()) == ["entry", "ps_0", "ps_1"]
    assert versions_in(str(place / "entry")) == [4, 5, 6]
    assert versions_in(str(place / "ps_1")) == [4, 6], "weights alone have no rows in parts"
    loaded = []
    for part in ("entry", "ps_0", "ps_1"):
        export = open_export(str(place / part))
        stores = export.new_stores()
        loaded.append(export.load_rows(stores))
    assert loaded[0] == loaded[1] + loaded[2]
    assert min(loaded) > 0
