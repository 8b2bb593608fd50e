"""Saving and restoring a whole run."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from google.protobuf import text_format

import monolith as ml
from checkpoint.runs import Run, contents
from monolith.checkpoint import PendingSave, SavedCheckpoint, Saver, TrainState
from monolith.checkpoint import saver as saver_module
from monolith.checkpoint.protos.ckpt_info_pb2 import CkptInfo
from monolith.checkpoint.writing import write_checkpoint
from monolith.errors import FailedPreconditionError, NotFoundError, OpError

pytestmark = pytest.mark.usefixtures("on_every_store")


@pytest.mark.parametrize("background", [False, True])
def test_a_resumed_run_is_the_run_that_was_not_interrupted(tmp_path: Path, *, background: bool) -> None:
    run = Run()
    run.steps(5)
    with Saver(tmp_path) as saver:
        result = saver.save(run.state, background=background)
        if background:
            assert isinstance(result, PendingSave)
            result = result.wait(30)
    assert isinstance(result, SavedCheckpoint)
    assert (result.path, result.step) == (f"{tmp_path}/model.ckpt-5", 5)
    saved = contents(run)
    losses = run.steps(6)

    resumed = Run(seed=1)
    resumed.steps(2)
    assert Saver(tmp_path).restore(resumed.state) == result
    assert contents(resumed) == saved
    assert resumed.steps(6) == losses
    assert contents(resumed) == contents(run)


def test_an_empty_directory_has_nothing_to_restore(tmp_path: Path) -> None:
    run = Run()
    assert Saver(tmp_path).restore(run.state) is None
    assert Saver(tmp_path / "missing").restore(run.state) is None
    assert list(tmp_path.iterdir()) == []


def test_continued_training_does_not_change_a_background_save(tmp_path: Path) -> None:
    run = Run()
    run.steps(4)
    saved = contents(run)
    with Saver(tmp_path, background=True) as saver:
        saver.save(run.state)
        run.steps(5)
    resumed = Run(seed=3)
    Saver(tmp_path).restore(resumed.state)
    assert contents(resumed) == saved


def test_a_restore_waits_for_the_checkpoint_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_write = threading.Event()
    wait = Saver.wait

    def write_when_waited_for(*args: Any, **options: Any) -> Any:
        assert may_write.wait(60)
        return write_checkpoint(*args, **options)

    def wait_and_let_write(saver: Saver) -> None:
        may_write.set()
        wait(saver)

    monkeypatch.setattr(saver_module, "write_checkpoint", write_when_waited_for)
    run, resumed = Run(), Run(seed=3)
    run.steps(4)
    with Saver(tmp_path, background=True) as saver:
        saver.save(run.state)
        monkeypatch.setattr(Saver, "wait", wait_and_let_write)
        assert saver.restore(resumed.state) is not None
    assert contents(resumed) == contents(run)


@pytest.mark.parametrize("error", [NotFoundError("no such cut"), FailedPreconditionError("it restarted")])
def test_a_restore_after_a_failed_save_takes_the_checkpoint_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: OpError
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    run, resumed = Run(), Run(seed=3)
    run.steps(4)
    saved = contents(run)
    with Saver(tmp_path, background=True) as saver:
        saver.save(run.state, background=False)
        run.steps(1)
        monkeypatch.setattr(saver_module, "write_checkpoint", fail)
        saver.save(run.state)
        assert saver.restore(resumed.state) is not None
    assert contents(resumed) == saved
    assert f"a pending save failed; an older checkpoint is restored: {error}" in caplog.text


def test_rows_are_counted_by_slot(tmp_path: Path) -> None:
    """`user` and `item` share a table, `tag` has one to itself."""
    emb = ml.Embeddings({"user": ml.Slot(2, number=3), "item": ml.Slot(2, number=5), "tag": ml.Slot(4, number=9)})
    batch = {"user": torch.tensor([1, 2]), "item": torch.tensor([7, 7]), "tag": torch.tensor([[1, 2], [3, 4]])}
    emb(batch).concat().sum().backward()
    emb.step()
    with Saver(tmp_path, max_to_keep=1) as saver:
        for step in (8, 9):
            saver.save(TrainState(model=emb, global_step=step))
    info = text_format.Parse((tmp_path / "ckpt.info-9").read_text(), CkptInfo())
    assert dict(info.feature_counts) == {"user": 2, "item": 1, "tag": 4}
    assert dict(info.slot_counts) == {3: 2, 5: 1, 9: 4}
    assert (tmp_path / "ckpt.info-8").exists()  # retention leaves it
    with Saver(tmp_path / "without", write_info=False) as saver:
        saver.save(TrainState(model=emb, global_step=1))
    assert not (tmp_path / "without" / "ckpt.info-1").exists()
