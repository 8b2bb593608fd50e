"""restore_ckpt and restore_dir: applied once, with markers."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from monolith.checkpoint import (
    Saver,
    TrainState,
    copy_checkpoint_state,
    get_checkpoint_state,
    get_monolith_checkpoint_state,
    isabs,
    wait_for_monolith_checkpoint,
)
from monolith.checkpoint.restore.rules import RESTORE_CKPT
from monolith.checkpoint.state_files import MONOLITH_CHECKPOINT
from monolith.errors import DataLossError, DeadlineExceededError
from monolith.testing import FakeClock

pytestmark = pytest.mark.usefixtures("on_every_store")


def make(model_dir: Path, *steps: int) -> None:
    with Saver(model_dir) as saver:
        for step in steps:
            saver.save(TrainState(model=torch.nn.Linear(1, 1), global_step=step))


def latest(model_dir: Path, **options: object) -> str:
    state = get_checkpoint_state(model_dir, **options)  # type: ignore[arg-type]
    assert state is not None
    return state.model_checkpoint_path


def restored_step(model_dir: Path) -> int:
    state = TrainState(model=torch.nn.Linear(1, 1))
    Saver(model_dir).restore(state)
    return state.global_step


def test_an_unreadable_file_is_read_five_times(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text("model_checkpoint_pa")
    clock = FakeClock()
    with pytest.raises(DataLossError, match=r"^read ckpt error!$"):
        get_checkpoint_state(tmp_path, clock=clock)
    assert clock.monotonic() == pytest.approx(0.4)
    (tmp_path / "checkpoint").unlink()
    assert get_checkpoint_state(tmp_path, clock=clock) is None


def test_a_file_that_becomes_readable_is_used(tmp_path: Path) -> None:
    make(tmp_path, 1)
    text = (tmp_path / "checkpoint").read_text()
    (tmp_path / "checkpoint").write_text(text[:20])

    class Repairs(FakeClock):
        def sleep(self, seconds: float) -> None:
            (tmp_path / "checkpoint").write_text(text)

    assert latest(tmp_path, clock=Repairs()) == f"{tmp_path}/model.ckpt-1"


def test_training_applies_a_named_checkpoint_once(tmp_path: Path) -> None:
    make(tmp_path, 10, 20, 30)
    assert latest(tmp_path, restore_ckpt="model.ckpt-20") == f"{tmp_path}/model.ckpt-20"
    assert (tmp_path / RESTORE_CKPT).read_text() == f"{tmp_path}/model.ckpt-20"
    assert 'model_checkpoint_path: "model.ckpt-20"' in (tmp_path / "checkpoint").read_text()
    assert restored_step(tmp_path) == 20  # also for a run that was killed before its first save
    make(tmp_path, 25)
    assert latest(tmp_path, restore_ckpt="model.ckpt-20") == f"{tmp_path}/model.ckpt-25"
    assert restored_step(tmp_path) == 25


def test_after_a_rollback_the_new_run_is_the_newest_although_its_step_is_lower(tmp_path: Path) -> None:
    make(tmp_path, 10, 20, 30)
    get_checkpoint_state(tmp_path, restore_ckpt="model.ckpt-10")
    make(tmp_path, 20)
    (tmp_path / "checkpoint").unlink()
    assert restored_step(tmp_path) == 20


def test_others_apply_it_each_time_and_write_nothing(tmp_path: Path) -> None:
    make(tmp_path, 10, 20)
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    for _ in range(2):
        assert latest(tmp_path, restore_ckpt="/elsewhere/model.ckpt-10", training=False) == f"{tmp_path}/model.ckpt-10"
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_an_unlisted_name_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make(tmp_path, 10)
    assert latest(tmp_path, restore_ckpt="model.ckpt-99") == f"{tmp_path}/model.ckpt-10"
    assert "model.ckpt-99' is not listed" in caplog.text
    assert not (tmp_path / RESTORE_CKPT).exists()


def test_another_state_file_is_ignored(tmp_path: Path) -> None:
    make(tmp_path, 10, 20)
    (tmp_path / "other").write_text((tmp_path / "checkpoint").read_text())
    assert latest(tmp_path, latest_filename="other", restore_ckpt="model.ckpt-10") == f"{tmp_path}/model.ckpt-20"


def test_a_run_starts_from_another_directory_whose_checkpoint_is_never_deleted(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    make(source, 10, 20, 30)
    assert copy_checkpoint_state(source, target, restore_ckpt="model.ckpt-20")
    assert (target / RESTORE_CKPT).exists()
    assert latest(target) == f"{source}/model.ckpt-20"
    monolith = get_monolith_checkpoint_state(target)
    assert monolith is not None
    assert list(monolith.exempt_model_checkpoint_paths) == [f"{source}/model.ckpt-20"]
    assert monolith.builtin_hash_table_type == 2
    assert restored_step(target) == 20
    with Saver(target, max_to_keep=1) as saver:
        for step in (21, 22, 23):
            saver.save(TrainState(model=torch.nn.Linear(1, 1), global_step=step))
    assert restored_step(target) == 23
    assert sorted(path.name for path in source.glob("*.manifest")) == [
        "model.ckpt-10.manifest",
        "model.ckpt-20.manifest",
        "model.ckpt-30.manifest",
    ]
    assert not copy_checkpoint_state(source, target)
    assert restored_step(target) == 23


def test_the_latest_of_another_directory_if_none_or_an_unknown_one_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path / "source", 10, 20)
    assert copy_checkpoint_state(tmp_path / "source", tmp_path / "a")
    assert latest(tmp_path / "a").endswith("source/model.ckpt-20")
    assert not (tmp_path / "a" / RESTORE_CKPT).exists()
    assert copy_checkpoint_state(tmp_path / "source", tmp_path / "b", restore_ckpt="model.ckpt-15")
    assert latest(tmp_path / "b").endswith("source/model.ckpt-20")
    assert "'model.ckpt-15' is not listed" in caplog.text


def test_a_restore_dir_without_checkpoint_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not copy_checkpoint_state(tmp_path / "missing", tmp_path / "target")
    assert "no checkpoint there" in caplog.text
    assert not (tmp_path / "target").exists()


def test_others_wait_for_the_chief(tmp_path: Path) -> None:
    clock = FakeClock(blocking=True)
    waiting = threading.Thread(target=wait_for_monolith_checkpoint, args=(tmp_path,), kwargs={"clock": clock})
    waiting.start()
    clock.wait_for_sleepers(1)
    clock.advance(29)
    assert waiting.is_alive()
    (tmp_path / MONOLITH_CHECKPOINT).write_text("")
    clock.advance(1)
    waiting.join(60)
    assert not waiting.is_alive()


def test_waiting_can_end(tmp_path: Path) -> None:
    with pytest.raises(DeadlineExceededError, match=r"no monolith_checkpoint within 90 s; is the chief running\?"):
        wait_for_monolith_checkpoint(tmp_path, timeout_seconds=90, clock=FakeClock())


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/a", True), ("a/b", False), ("hdfs:/a", True), ("hdfs://n/a", True), ("s3://b/a", True), ("", False)],
)  # fmt: skip
def test_absolute_paths(path: str, *, expected: bool) -> None:
    assert isabs(path) is expected
