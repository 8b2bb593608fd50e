"""In which order checkpoints are tried, who may commit one, and when an old one goes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from torch import nn

from monolith.checkpoint import Saver, TrainState
from monolith.checkpoint.catalog import Catalog
from monolith.checkpoint.model_dir_lock import GENERATION, GenerationClaim
from monolith.errors import FailedPreconditionError, ResourceExhaustedError
from monolith.files.storage import LocalStorage, open_storage


def state_at(step: int) -> TrainState:
    return TrainState(model=nn.Linear(1, 1), global_step=step)


def save(folder: Path, *steps: int) -> None:
    with Saver(folder) as saver:
        for step in steps:
            saver.save(state_at(step))


def order(folder: Path) -> list[int]:
    paths = Catalog(open_storage(folder), "model.ckpt").newest_first()
    return [int(path.rpartition("-")[2]) for path in paths]


def restored_step(folder: Path) -> int:
    state = state_at(0)
    assert Saver(folder).restore(state) is not None
    return state.global_step


def damage(folder: Path, step: int) -> None:
    (folder / f"model.ckpt-{step}.safetensors").write_bytes(b"")


def test_of_those_that_are_left_the_newest_is_tried_first(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3, 4)
    assert order(tmp_path) == [4, 3, 2, 1]
    damage(tmp_path, 4)
    assert restored_step(tmp_path) == 3
    damage(tmp_path, 3)
    assert restored_step(tmp_path) == 2


def test_a_later_generation_is_newer_than_a_later_step(tmp_path: Path) -> None:
    """A run that was set back to step 2 is ahead of the one that had come to step 9 before."""
    save(tmp_path, 8, 9)
    save(tmp_path, 2, 3)
    assert order(tmp_path) == [3, 2, 9, 8]
    damage(tmp_path, 3)
    assert restored_step(tmp_path) == 2


def test_a_checkpoint_committed_after_the_state_file_is_tried_first_and_counted(tmp_path: Path) -> None:
    """A process that is killed between its commit and the text file leaves it so."""
    save(tmp_path, 1, 2)
    shutil.copy(tmp_path / "checkpoint", tmp_path / "kept")
    save(tmp_path, 3, 4)
    (tmp_path / "kept").rename(tmp_path / "checkpoint")
    assert order(tmp_path) == [4, 3, 2, 1]
    assert restored_step(tmp_path) == 4
    damage(tmp_path, 4)
    assert restored_step(tmp_path) == 3
    with Saver(tmp_path, max_to_keep=3) as saver:
        saver.begin()
        assert [int(path.rpartition("-")[2]) for path in saver.last_checkpoints] == [1, 2, 3, 4]
        saver.save(state_at(5))
    assert sorted(path.name for path in tmp_path.glob("*.manifest")) == [
        f"model.ckpt-{step}.manifest" for step in (3, 4, 5)
    ]


def test_without_a_state_file_the_manifests_give_the_same_order(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3)
    (tmp_path / "checkpoint").unlink()
    assert order(tmp_path) == [3, 2, 1]


def test_what_the_state_file_points_to_comes_before_what_it_only_lists(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3)
    text = (tmp_path / "checkpoint").read_text()
    (tmp_path / "checkpoint").write_text(
        text.replace('model_checkpoint_path: "model.ckpt-3"', 'model_checkpoint_path: "model.ckpt-1"', 1)
    )
    assert order(tmp_path) == [1, 3, 2]


@pytest.mark.parametrize(("theirs", "is_refused"), [(0, False), (1, True), (2, True)])
def test_two_runs_that_claimed_the_same_generation_do_not_both_commit(
    tmp_path: Path, theirs: int, *, is_refused: bool
) -> None:
    """On a store without locks two can read the same number at once; the one that wrote last has it."""
    claim = GenerationClaim(open_storage(tmp_path), above=0)
    assert claim.generation == 1
    claim.require()
    other = {"generation": theirs, "host": "elsewhere", "pid": 7, "since": "now"}
    (tmp_path / GENERATION).write_text(json.dumps(other))
    if is_refused:
        with pytest.raises(FailedPreconditionError, match=f"replaced by process 7 on host .* generation {theirs}"):
            claim.require()
    else:
        claim.require()


@pytest.mark.parametrize("failing_name", ["checkpoint", "monolith_checkpoint"])
def test_an_old_one_goes_only_when_both_text_files_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing_name: str
) -> None:
    replace = LocalStorage.replace

    def failing(self: LocalStorage, name: str, data: bytes) -> None:
        if name == failing_name:
            raise ResourceExhaustedError("no space")
        replace(self, name, data)

    with Saver(tmp_path, max_to_keep=1) as saver:
        saver.save(state_at(1))
        with monkeypatch.context() as patched:
            patched.setattr(LocalStorage, "replace", failing)
            with pytest.raises(ResourceExhaustedError):
                saver.save(state_at(2))
        assert {path.name for path in tmp_path.glob("*.manifest")} == {"model.ckpt-1.manifest", "model.ckpt-2.manifest"}
        saver.save(state_at(3))
    assert not (tmp_path / "model.ckpt-2.manifest").exists()
    assert restored_step(tmp_path) == 3
