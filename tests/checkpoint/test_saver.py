"""Saving and restoring a whole run."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoint.runs import Run, contents
from monolith.checkpoint import PendingSave, SavedCheckpoint, Saver


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


def test_training_that_goes_on_does_not_reach_a_background_save(tmp_path: Path) -> None:
    run = Run()
    run.steps(4)
    saved = contents(run)
    with Saver(tmp_path, background=True) as saver:
        saver.save(run.state)
        run.steps(5)
    resumed = Run(seed=3)
    Saver(tmp_path).restore(resumed.state)
    assert contents(resumed) == saved
