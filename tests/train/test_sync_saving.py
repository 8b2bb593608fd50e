"""Saves, control files and reports of synchronous runs, on two ranks; checkpoints that any number of them reads."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from programs import Programs
from train.sync_cases import Thirteen, digest_of, restored
from train.sync_ranks import results_of, run_ranks
from train.sync_saving_cases import saved_steps
from train.test_sync_training import accumulated

pytestmark = pytest.mark.slow

CASES = ["files", "limit", "online", "background", "disk", "estimator", "reports"]


@pytest.fixture(scope="module")
def two(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    intervals = {"MONOLITH_SAVE_SUMMARY_INTERVAL": "2", "MONOLITH_ROOT_LOG_INTERVAL": "3"}
    run_ranks(programs, "sync_saving_cases", folder, CASES, size=2, **intervals)
    return folder


def test_a_file_saves_and_another_stops_all_ranks_at_their_steps(two: Path) -> None:
    assert results_of(two, "files") == [4, 4]
    assert saved_steps(two / "files" / "model") == [2, 4]


def test_the_time_of_the_data_saves_and_stops_all_ranks(two: Path) -> None:
    assert results_of(two, "limit") == [2, 2]
    assert saved_steps(two / "limit" / "model") == [2]


def test_checkpoints_without_tables_while_online(two: Path) -> None:
    results_of(two, "online")
    assert saved_steps(two / "online" / "model" / "dense_only") == [3, 4]
    assert saved_steps(two / "online" / "model") == [4]


def test_background_saves_hold_the_state_of_their_step(two: Path) -> None:
    assert results_of(two, "background") == [7, 7]
    steps = saved_steps(two / "background" / "model")
    assert steps[-1] == 7
    assert digest_of(restored(Thirteen, two / "background")) == digest_of(accumulated(Thirteen, 2))


def test_a_save_that_fails_on_one_rank_fails_on_all_and_is_made_again(two: Path) -> None:
    first, last = results_of(two, "disk")
    assert (first, last) == ([5, [1, 0]], [5, [0, 1]])
    assert saved_steps(two / "disk" / "model") == [1, 2, 3, 4, 5]


def test_an_estimator_chooses_ranks_by_its_config(two: Path) -> None:
    assert results_of(two, "estimator") == [[3, ["auc", "examples", "global_step", "loss"]]] * 2


def test_only_rank_0_reports_at_the_intervals_of_its_environment(two: Path) -> None:
    first, other = results_of(two, "reports")
    assert first[:2] == [2, 3]
    assert other[:3] == [2, None, False]
    assert (first[3], other[3]) == (2, 2)


def test_a_rank_killed_during_a_save_leaves_the_previous_one_to_resume_from(programs: Programs, tmp_path: Path) -> None:
    ended = run_ranks(programs, "sync_saving_cases", tmp_path, ["killed"], size=2)
    assert ended[1][0] == -9
    assert ended[0][0] == 1
    assert "UnavailableError" in ended[0][1]
    assert saved_steps(tmp_path / "killed" / "model") == [2, 4], "that of step 6 was torn"
    (tmp_path / "killed" / "again").touch()
    run_ranks(programs, "sync_saving_cases", tmp_path, ["killed"], size=2)
    assert results_of(tmp_path, "killed") == [7, 7]
    assert digest_of(restored(Thirteen, tmp_path / "killed")) == digest_of(accumulated(Thirteen, 2))
    shutil.rmtree(tmp_path / "killed")
