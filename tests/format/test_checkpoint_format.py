"""Checkpoints of every version so far stay readable, and their page is about the version that is written."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from google.protobuf import text_format

from monolith.checkpoint import FORMAT_VERSION, Manifest, Saver
from monolith.checkpoint.inspection import SavedState
from monolith.checkpoint.protos.checkpoint_state_pb2 import CheckpointState, MonolithCheckpointState

STORED = sorted(Path(__file__).parent.glob("checkpoint_v*"))


def test_every_version_so_far_has_a_stored_checkpoint() -> None:
    assert [folder.name for folder in STORED] == [f"checkpoint_v{number}" for number in range(1, FORMAT_VERSION + 1)]


@pytest.mark.parametrize("folder", STORED, ids=lambda folder: folder.name)
def test_a_stored_checkpoint_stays_readable(folder: Path, tmp_path: Path) -> None:
    model_dir = tmp_path / "model"
    shutil.copytree(folder / "model", model_dir)  # what Git gives is not ours to lock
    spec = importlib.util.spec_from_file_location(f"make_{folder.name}", folder / "make.py")
    assert spec is not None
    assert spec.loader is not None
    stored = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = stored
    spec.loader.exec_module(stored)

    state = stored.state()
    Saver(model_dir).restore(state)
    assert state.global_step == 3
    assert state.position() == b'{"offset":12}'
    assert state.positions["raw"] == b"\xff"
    assert state.next_stamp().seq == 3
    torch.testing.assert_close(state.model.tower.weight, torch.tensor([[0.36517006158828735, -0.3129255175590515]]))
    row = [-0.11426211893558502, 0.11426868289709091]
    torch.testing.assert_close(state.model.emb.lookup("user", torch.tensor([1, 7])), torch.tensor([row, row]))
    adam = state.optimizers["adam"]
    assert adam.param_groups[0]["lr"] == pytest.approx(1e-4)
    expected = torch.tensor([[-0.036071065813302994, 0.03607106953859329]])
    torch.testing.assert_close(adam.state[state.model.tower.weight]["exp_avg"], expected)
    assert SavedState(f"{model_dir}/model.ckpt-3").verify() > 0


def test_the_page_is_about_what_is_written(project_root: Path) -> None:
    text = (project_root / "docs" / "formats" / "checkpoint.md").read_text(encoding="utf-8")
    assert f"# Checkpoints, version {FORMAT_VERSION}\n" in text
    assert f"`monolith.checkpoint.FORMAT_VERSION` = {FORMAT_VERSION}." in text
    assert f'`"monolith-checkpoint"`, {FORMAT_VERSION} |' in text
    for field in fields(Manifest):
        assert f"`{field.name}`" in text, field.name
    first, second = (block for block in text.split("```")[1::2] if "path" in block and "<model directory>" not in block)
    assert len(text_format.Parse(first, CheckpointState()).ListFields()) == 4
    assert len(text_format.Parse(second, MonolithCheckpointState()).ListFields()) == 3
