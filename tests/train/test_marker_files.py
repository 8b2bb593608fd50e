"""Files in the model directory make a trainer save and stop."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from monolith import collective
from monolith.testing import ExampleTask, FakeClock, NumberedBatches
from monolith.train import MarkerFilesConfig, Mode, SavingConfig, Trainer, TrainerConfig

EVERY_5 = MarkerFilesConfig(dump_look_steps=5, limit_look_steps=5)
FIRST_TIME = 1_700_000_000
"""Of `ExampleTask`; a batch is a minute."""


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    yield
    collective.shutdown()


def steps_of(model_dir: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1].split(".")[0]) for path in model_dir.glob("model.ckpt-*.manifest"))


class Unshared(ExampleTask):
    """All batches for each worker."""

    def input_fn(self, mode: Mode) -> NumberedBatches:
        return self.ctx.unshared(super().input_fn(mode))


def train(model_dir: Path, saving: SavingConfig, *, hour: int = 3, worker_index: int = 0) -> int:
    clock = FakeClock(now=datetime(2026, 3, 1, hour, tzinfo=UTC).timestamp())
    config = TrainerConfig(model_dir=str(model_dir), saving=saving, worker_index=worker_index, num_workers=2)
    return Trainer(Unshared(), config, clock=clock).train().global_step


def test_a_dump_file_saves_at_its_step(tmp_path: Path) -> None:
    (tmp_path / "dump_10").touch()
    assert train(tmp_path, SavingConfig(marker_files=EVERY_5)) == 20
    assert steps_of(tmp_path) == [10, 20]


def test_a_stop_file_saves_at_its_step_and_stops(tmp_path: Path) -> None:
    (tmp_path / "stop_15").touch()
    assert train(tmp_path, SavingConfig(marker_files=EVERY_5)) == 15
    assert steps_of(tmp_path) == [15]


def test_marker_files_are_not_polled_without_the_config(tmp_path: Path) -> None:
    for name in ("dump_10", "stop_15"):
        (tmp_path / name).touch()
    (tmp_path / "limit_req_time").write_text(str(FIRST_TIME))
    assert train(tmp_path, SavingConfig()) == 20
    assert steps_of(tmp_path) == [20]


@pytest.mark.parametrize(("hour", "saved"), [(17, [4, 10, 14, 20]), (18, [4, 8, 10, 14, 18, 20])])
def test_the_interval_holds_in_the_evening_only(tmp_path: Path, hour: int, saved: list[int]) -> None:
    """Else until the first look, and from a file to the next look."""
    (tmp_path / "dump_10").touch()
    train(tmp_path, SavingConfig(every_steps=4, marker_files=EVERY_5), hour=hour)
    assert steps_of(tmp_path) == saved


@pytest.mark.parametrize(("minutes", "last_step"), [(0, 5), (4, 5), (5, 10), (9, 10), (10, 15), (20, 20)])
def test_the_time_of_the_data_saves_and_stops(tmp_path: Path, minutes: int, last_step: int) -> None:
    """Step n trains the batch of minute n - 1; the hook looks at steps 5, 10, 15 and 20."""
    (tmp_path / "limit_req_time").write_text(str(FIRST_TIME + 60 * minutes))
    files = MarkerFilesConfig(dump_look_steps=None, limit_look_steps=5)
    assert train(tmp_path, SavingConfig(marker_files=files)) == last_step
    assert steps_of(tmp_path) == [last_step]


@pytest.mark.parametrize(("online", "saved"), [(False, [2, 4]), (True, [2, 4, 6, 8, 10, 12, 14, 16, 18, 20])])
def test_online_lets_checkpoints_without_tables_be_made(tmp_path: Path, online: bool, saved: list[int]) -> None:
    if online:
        (tmp_path / "ONLINE").touch()
    files = MarkerFilesConfig(dump_look_steps=None, limit_look_steps=None, online_look_steps=5)
    train(tmp_path, SavingConfig(dense_every_steps=2, max_to_keep=20, marker_files=files))
    assert steps_of(tmp_path / "dense_only") == saved
    assert steps_of(tmp_path) == [20]


def test_a_worker_that_saves_nothing_stops_by_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "stop_15").touch()
    assert train(tmp_path, SavingConfig(marker_files=EVERY_5), worker_index=1) == 15
    assert steps_of(tmp_path) == []


def test_marker_files_are_polled_every_hundred_and_every_thousand_steps_by_default() -> None:
    files = MarkerFilesConfig()
    assert (files.dump_look_steps, files.limit_look_steps, files.online_look_steps) == (100, 1000, None)
    assert SavingConfig().marker_files is None


def test_what_could_not_be_done_is_refused() -> None:
    with pytest.raises(ValueError, match="dump_look_steps must be >= 1, got 0"):
        MarkerFilesConfig(dump_look_steps=0)
    with pytest.raises(ValueError, match=r"online_look_steps is about checkpoints without tables.*dense_every_steps"):
        SavingConfig(marker_files=MarkerFilesConfig(online_look_steps=100))
    with pytest.raises(ValueError, match="files of the model directory; give model_dir"):
        TrainerConfig(saving=SavingConfig(marker_files=MarkerFilesConfig()))
