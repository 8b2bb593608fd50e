"""Which checkpoints stay, and what the text files say about them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monolith.checkpoint import (
    SaveHelper,
    Saver,
    TrainState,
    best_checkpoint,
    get_checkpoint_state,
    get_latest_checkpoint_state,
    get_monolith_checkpoint_state,
    keep_best,
)
from monolith.checkpoint.retention import Retention
from monolith.checkpoint.state_files import MONOLITH_CHECKPOINT
from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError
from monolith.testing import FakeClock

pytestmark = pytest.mark.usefixtures("on_every_store")


def save_steps(saver: Saver, *steps: int) -> None:
    for step in steps:
        saver.save(TrainState(model=torch.nn.Linear(1, 1), global_step=step))


def committed(model_dir: Path) -> set[int]:
    return {int(path.name.split("-")[1].split(".")[0]) for path in model_dir.glob("model.ckpt-*.manifest")}


def test_the_steps_of_a_directory(tmp_path: Path) -> None:
    with Saver(tmp_path) as saver:
        save_steps(saver, 10, 20, 300)
    helper = SaveHelper(tmp_path)
    assert helper.get_existing_checkpoint_steps() == {10, 20, 300}
    assert helper.get_ckpt_prefix("model.ckpt", 10) == "model.ckpt-10"
    assert helper.get_ckpt_asset_dir("model.ckpt-10") == "model.ckpt-10.assets/"
    assert helper.get_global_step_value("a-b/model.ckpt-300") == 300
    with pytest.raises(InvalidArgumentError, match=r"must end in -<step>, got 'model.ckpt'"):
        helper.get_global_step_value("model.ckpt")
    assert SaveHelper(tmp_path / "missing").get_existing_checkpoint_steps() == set()


@pytest.mark.parametrize("restarts", [False, True])
def test_exempt_checkpoints_stay_and_are_not_counted(tmp_path: Path, *, restarts: bool) -> None:
    with Saver(tmp_path, max_to_keep=3) as saver:
        save_steps(saver, 10, 20)
        text = (tmp_path / MONOLITH_CHECKPOINT).read_text()
        exempt = "".join(f'exempt_model_checkpoint_paths: "model.ckpt-{step}"\n' for step in (10, 20))
        (tmp_path / MONOLITH_CHECKPOINT).write_text(text + exempt)
        save_steps(saver, 30)
        if not restarts:
            save_steps(saver, 40, 50, 60)
    if restarts:
        for step in (40, 50, 60):
            with Saver(tmp_path, max_to_keep=3) as saver:
                save_steps(saver, step)
    assert SaveHelper(tmp_path).get_existing_checkpoint_steps() == {10, 20, 40, 50, 60}
    assert committed(tmp_path) == {10, 20, 40, 50, 60}
    assert not list(tmp_path.glob("model.ckpt-30*"))


def test_exempt_checkpoints_that_were_deleted_are_dropped_from_the_list(tmp_path: Path) -> None:
    with Saver(tmp_path) as saver:
        save_steps(saver, 10)
        (tmp_path / MONOLITH_CHECKPOINT).write_text('exempt_model_checkpoint_paths: "model.ckpt-9"\n')
        save_steps(saver, 20)
    assert "model.ckpt-9" not in (tmp_path / MONOLITH_CHECKPOINT).read_text()


@pytest.mark.parametrize("keeps_all", [None, 0])
def test_without_a_limit_all_stay(tmp_path: Path, keeps_all: int | None) -> None:
    with Saver(tmp_path, max_to_keep=keeps_all) as saver:
        save_steps(saver, *range(1, 14))
    assert committed(tmp_path) == set(range(1, 14))


def test_the_surplus_goes_with_all_its_files_and_nothing_else_does(tmp_path: Path) -> None:
    (tmp_path / "ckpt.info-1").write_text("")
    (tmp_path / "model.ckpt-1_item_pool_0_0_1").write_text("")
    (tmp_path / "model.ckpt-10.meta").write_text("of another program")
    with Saver(tmp_path, max_to_keep=2) as saver:
        save_steps(saver, 1, 2)
        (tmp_path / "model.ckpt-1.anything").write_text("")
        save_steps(saver, 3)
    names = {path.name for path in tmp_path.iterdir()}
    assert not {name for name in names if name.startswith("model.ckpt-1.")}
    assert names >= {"ckpt.info-1", "model.ckpt-1_item_pool_0_0_1", "model.ckpt-10.meta"}
    assert committed(tmp_path) == {2, 3}


def test_saving_a_step_again_moves_it_to_the_end(tmp_path: Path) -> None:
    with Saver(tmp_path, max_to_keep=2) as saver:
        save_steps(saver, 1, 2, 1, 3)
    assert committed(tmp_path) == {1, 3}


def test_the_fields_of_both_files(tmp_path: Path) -> None:
    clock = FakeClock(now=1_700_000_000.25)
    with Saver(tmp_path, clock=clock, max_to_keep=2) as saver:
        save_steps(saver, 1)
        clock.advance(10)
        save_steps(saver, 2)
    assert (tmp_path / "checkpoint").read_text() == (
        'model_checkpoint_path: "model.ckpt-2"\n'
        'all_model_checkpoint_paths: "model.ckpt-1"\n'
        'all_model_checkpoint_paths: "model.ckpt-2"\n'
        "all_model_checkpoint_timestamps: 1700000000.25\n"
        "all_model_checkpoint_timestamps: 1700000010.25\n"
        "last_preserved_timestamp: 1700000000.25\n"
    )
    assert (tmp_path / MONOLITH_CHECKPOINT).read_text() == (
        "last_checkpoint_save_timestamp: 1700000010\nbuiltin_hash_table_type: MULTI_CUCKOO_HASH_MAP\n"
    )
    state = get_checkpoint_state(tmp_path)
    assert state is not None
    assert state.model_checkpoint_path == f"{tmp_path}/model.ckpt-2"
    assert list(state.all_model_checkpoint_paths) == [f"{tmp_path}/model.ckpt-1", f"{tmp_path}/model.ckpt-2"]


def test_one_checkpoint_per_given_number_of_hours_is_kept_forever(tmp_path: Path) -> None:
    """The original's case: two to keep, one every 0.7 s; here the clock is the test's."""
    clock = FakeClock(now=1000.0)
    with Saver(tmp_path, max_to_keep=2, keep_every_hours=0.7 / 3600, clock=clock) as saver:
        clock.advance(0.8)
        save_steps(saver, 1)
        clock.advance(0.1)
        save_steps(saver, 2, 3)  # 1 is let go by the limit, but 0.7 s have passed: it stays
        assert committed(tmp_path) == {1, 2, 3}
        save_steps(saver, 4)
        assert committed(tmp_path) == {1, 3, 4}
        assert [path.rpartition("-")[2] for path in saver.last_checkpoints] == ["3", "4"]


def test_the_hours_keep_counting_across_a_restart(tmp_path: Path) -> None:
    clock = FakeClock(now=0.0)
    for step in range(1, 8):
        with Saver(tmp_path, max_to_keep=1, keep_every_hours=1.0, clock=clock) as saver:
            clock.advance(1200)
            save_steps(saver, step)
    # step n was saved at n * 20 minutes, counted from the first run's start; 4 and 7 are the first after an hour each
    assert committed(tmp_path) == {4, 7}


@given(st.lists(st.integers(0, 30), max_size=40), st.integers(1, 5), st.sets(st.integers(0, 30), max_size=4))
def test_retention_keeps_the_newest_and_the_exempt(steps: list[int], limit: int, exempt: set[int]) -> None:
    retention = Retention(max_to_keep=limit, keep_every_hours=None, now=0.0)
    there: list[int] = []
    for time, step in enumerate(steps):
        gone = retention.record(str(step), float(time), exempt={str(each) for each in exempt})
        there = [each for each in there if each != step] + [step]
        there = [each for each in there if str(each) not in gone]
        newest = [each for each in there if each not in exempt]
        assert len(newest) <= limit
        assert [each.path for each in retention.kept] == [str(each) for each in there]
    distinct = list(dict.fromkeys(reversed(steps)))
    assert {each for each in distinct if each not in exempt and each in there} == set(
        [each for each in distinct if each not in exempt][:limit]
    )


def test_wrong_limits_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"max_to_keep must be >= 0 .*, got -1"):
        Saver(tmp_path, max_to_keep=-1)
    with pytest.raises(InvalidArgumentError, match=r"keep_every_hours must be > 0, got 0"):
        Saver(tmp_path, keep_every_hours=0)
    with pytest.raises(InvalidArgumentError, match="basename must be the name of a file"):
        Saver(tmp_path, basename="a/b")


def test_a_moved_directory_is_read_and_continued(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    with Saver(before, max_to_keep=2) as saver:
        save_steps(saver, 1, 2)
    before.rename(after)
    state = TrainState(model=torch.nn.Linear(1, 1))
    restored = Saver(after).restore(state)
    assert restored is not None
    assert (restored.path, state.global_step) == (f"{after}/model.ckpt-2", 2)
    with Saver(after, max_to_keep=2) as saver:
        save_steps(saver, 3)
    assert committed(after) == {2, 3}
    assert not before.exists()


def test_a_checkpoint_that_a_killed_process_did_not_list_is_adopted(tmp_path: Path) -> None:
    """It was committed, but `checkpoint` was not updated any more."""
    with Saver(tmp_path, max_to_keep=2) as saver:
        save_steps(saver, 1, 2)
        text = (tmp_path / "checkpoint").read_text()
        save_steps(saver, 3)
    (tmp_path / "checkpoint").write_text(text)
    state = TrainState(model=torch.nn.Linear(1, 1))
    restored = Saver(tmp_path).restore(state)
    assert restored is not None
    assert restored.step == 3
    with Saver(tmp_path, max_to_keep=2) as saver:
        save_steps(saver, 4)
    assert committed(tmp_path) == {3, 4}


def test_a_directory_without_state_file_is_read_by_its_manifests(tmp_path: Path) -> None:
    with Saver(tmp_path) as saver:
        save_steps(saver, 9, 10)
    (tmp_path / "checkpoint").unlink()
    state = TrainState(model=torch.nn.Linear(1, 1))
    Saver(tmp_path).restore(state)
    assert state.global_step == 10


def test_listed_checkpoints_that_were_deleted_are_dropped(tmp_path: Path) -> None:
    with Saver(tmp_path, max_to_keep=3) as saver:
        save_steps(saver, 1, 2, 3)
    for path in tmp_path.glob("model.ckpt-2.*"):
        path.unlink()
    with Saver(tmp_path, max_to_keep=3) as saver:
        saver.begin()
        assert [path.rpartition("-")[2] for path in saver.last_checkpoints] == ["1", "3"]
        save_steps(saver, 4)
    assert committed(tmp_path) == {1, 3, 4}


def test_the_state_is_cached_until_the_step_grows(tmp_path: Path) -> None:
    assert get_latest_checkpoint_state(tmp_path, 5) is None
    with Saver(tmp_path) as saver:
        save_steps(saver, 1)
        first = get_latest_checkpoint_state(tmp_path, 5)  # nothing was there: looks again
        assert first is not None
        save_steps(saver, 2)
        assert get_latest_checkpoint_state(tmp_path, 5) is first
        assert get_latest_checkpoint_state(tmp_path, 4) is first
        second = get_latest_checkpoint_state(tmp_path, 6)
    assert second is not None
    assert second.model_checkpoint_path.endswith("model.ckpt-2")


def test_the_monolith_file_is_read_with_full_paths_or_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert get_monolith_checkpoint_state(tmp_path) is None
    assert MONOLITH_CHECKPOINT in caplog.text
    with Saver(tmp_path) as saver:
        save_steps(saver, 1)
    (tmp_path / MONOLITH_CHECKPOINT).write_text(
        'exempt_model_checkpoint_paths: "model.ckpt-1"\nexempt_model_checkpoint_paths: "model.ckpt-2"\n'
        f'exempt_model_checkpoint_paths: "{tmp_path}/model.ckpt-3"\n'
    )
    as_it_is = get_monolith_checkpoint_state(tmp_path)
    assert as_it_is is not None
    assert len(as_it_is.exempt_model_checkpoint_paths) == 3
    valid = get_monolith_checkpoint_state(tmp_path, remove_invalid_path=True)
    assert valid is not None
    assert list(valid.exempt_model_checkpoint_paths) == [f"{tmp_path}/model.ckpt-1"]
    caplog.clear()
    (tmp_path / "other").write_text("neither { text")
    assert get_monolith_checkpoint_state(tmp_path, filename="other") is None
    assert "ParseError" in caplog.text


@pytest.mark.parametrize(("mode", "values", "kept"), [("max", [0.5, 0.9, 0.7], 2), ("min", [0.5, 0.9, 0.7], 1)])
@pytest.mark.parametrize("restarts", [False, True])
def test_the_best_checkpoint_stays_and_is_restored_by_name(
    mode: Literal["max", "min"], values: list[float], kept: int, tmp_path: Path, *, restarts: bool
) -> None:
    saver = Saver(tmp_path, max_to_keep=1)
    for step, value in enumerate(values, start=1):
        save_steps(saver, step)
        keep_best(tmp_path, {"auc": value}, checkpoint=f"model.ckpt-{step}", metric="auc", mode=mode)
        if restarts:
            saver.close()
            saver = Saver(tmp_path, max_to_keep=1)
    save_steps(saver, 4, 5)
    assert committed(tmp_path) == {kept, 5}
    state = TrainState(model=torch.nn.Linear(1, 1))
    restored = saver.restore(state, "best")
    saver.close()
    best = best_checkpoint(tmp_path)
    assert restored is not None
    assert best is not None
    assert (restored.step, restored.path, best.value) == (kept, best.path, values[kept - 1])


def test_a_checkpoint_that_is_no_longer_the_best_is_counted_again(tmp_path: Path) -> None:
    with Saver(tmp_path, max_to_keep=1) as saver:
        for step in (1, 2, 3):
            save_steps(saver, step)
            keep_best(tmp_path, {"auc": step}, checkpoint=f"model.ckpt-{step}")
        assert committed(tmp_path) == {2, 3}
        save_steps(saver, 4)
        assert committed(tmp_path) == {3, 4}


def test_what_cannot_be_the_best_leaves_the_former_one(tmp_path: Path) -> None:
    with Saver(tmp_path) as saver:
        save_steps(saver, 1, 2)
        with pytest.raises(InvalidArgumentError, match="not a valid checkpoint: best"):
            saver.restore(TrainState(model=torch.nn.Linear(1, 1)), "best")
    with pytest.raises(NotFoundError, match=r"there is no checkpoint '.*model.ckpt-7'"):
        keep_best(tmp_path, {"auc": 1.0}, checkpoint="model.ckpt-7")
    assert best_checkpoint(tmp_path) is None
    first = keep_best(tmp_path, {"auc": 0.5}, checkpoint="model.ckpt-1")
    with pytest.raises(NotFoundError):
        keep_best(tmp_path, {"auc": 1.0}, checkpoint="model.ckpt-7")
    assert keep_best(tmp_path, {"auc": float("nan")}, checkpoint="model.ckpt-2") == first == best_checkpoint(tmp_path)
    with pytest.raises(InvalidArgumentError, match=r"'auc' is not among the values, which are \['loss'\]"):
        keep_best(tmp_path, {"loss": 1.0}, checkpoint="model.ckpt-2")
    with pytest.raises(InvalidArgumentError, match="mode must be 'max' or 'min', got 'most'"):
        keep_best(tmp_path, {"auc": 1.0}, checkpoint="model.ckpt-2", mode="most")  # type: ignore[arg-type]
    (tmp_path / "best_checkpoint").write_text("{")
    with pytest.raises(DataLossError, match="remove the file to start from scratch"):
        best_checkpoint(tmp_path)
