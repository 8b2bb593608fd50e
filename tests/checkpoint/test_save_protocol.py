"""A saver asks its protocol which processes write, and commits only if all of them have written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from monolith.checkpoint import SavedCheckpoint, SaveProtocol, Saver, TrainState
from monolith.errors import UnavailableError


class OtherProcessFails(SaveProtocol):
    """A run of two processes, of which the other one fails where a test says so."""

    def __init__(self) -> None:
        self.fails_to_begin = False
        self.fails_at: int | None = None
        """Number of the agreement of a save, from 1, at which it fails."""

    def run_on_writers(self, what: str, work: Callable[[], None]) -> None:
        work()
        if self.fails_to_begin:
            raise UnavailableError(f"rank 1: {what}")

    def write(self, work: Callable[[], SavedCheckpoint], *, in_background: bool) -> SavedCheckpoint:
        self._agreements = 0
        return super().write(work, in_background=in_background)

    def agree(self) -> None:
        self._agreements += 1
        if self._agreements == self.fails_at:
            raise UnavailableError("rank 1: disk full")


class Observer(SaveProtocol):
    """A process that writes nothing and receives what was saved."""

    def run_on_writers(self, what: str, work: Callable[[], None]) -> None:
        pass

    def write(self, work: Callable[[], SavedCheckpoint], *, in_background: bool) -> SavedCheckpoint:
        return SavedCheckpoint(path="elsewhere/model.ckpt-1", step=1, generation=5)


def state_at(step: int) -> TrainState:
    return TrainState(model=torch.nn.Linear(2, 1), global_step=step)


def save_and_wait(saver: Saver, state: TrainState) -> None:
    saver.save(state)
    saver.wait()


def manifests(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.manifest")}


def test_a_directory_is_released_if_another_process_has_none(tmp_path: Path) -> None:
    protocol = OtherProcessFails()
    protocol.fails_to_begin = True
    with Saver(tmp_path, protocol=protocol) as saver:
        with pytest.raises(UnavailableError, match="rank 1: taking the model directory"):
            saver.begin()
        assert saver.generation is None
        with Saver(tmp_path) as another:
            another.save(state_at(1))
        protocol.fails_to_begin = False
        saved = saver.save(state_at(2), background=False)
    assert saved.generation == 3  # it has released 1, and the other saver had 2


@pytest.mark.parametrize("background", [False, True])
def test_nothing_is_committed_before_all_have_written(tmp_path: Path, *, background: bool) -> None:
    protocol = OtherProcessFails()
    with Saver(tmp_path, protocol=protocol, background=background) as saver:
        saver.save(state_at(1), background=False)
        protocol.fails_at = 1
        with pytest.raises(UnavailableError, match="disk full"):
            save_and_wait(saver, state_at(2))
        assert manifests(tmp_path) == {"model.ckpt-1.manifest"}
        assert not list(tmp_path.glob("model.ckpt-2.*"))
        restored = Saver(tmp_path).restore(state_at(0))
        assert restored is not None
        assert restored.step == 1
        assert saver.last_saved is not None
        assert saver.last_saved.step == 1


def test_older_ones_stay_until_all_have_committed(tmp_path: Path) -> None:
    protocol = OtherProcessFails()
    with Saver(tmp_path, protocol=protocol, max_to_keep=1) as saver:
        saver.save(state_at(1))
        protocol.fails_at = 2
        with pytest.raises(UnavailableError, match="disk full"):
            saver.save(state_at(2))
        assert manifests(tmp_path) == {"model.ckpt-1.manifest", "model.ckpt-2.manifest"}
        protocol.fails_at = None
        saver.save(state_at(3))
        assert manifests(tmp_path) == {"model.ckpt-3.manifest"}


def test_a_process_that_does_not_write_needs_no_directory(tmp_path: Path) -> None:
    folder = tmp_path / "of the first"
    with Saver(folder, protocol=Observer()) as saver:
        saver.begin()
        saver.create_state_file()
        assert saver.save(state_at(1), background=False).path == "elsewhere/model.ckpt-1"
        assert saver.last_saved is not None
        assert saver.last_saved.generation == 5
    assert not folder.exists()


def test_a_saver_of_a_subfolder_has_the_protocol_of_that(tmp_path: Path) -> None:
    class Named(SaveProtocol):
        def __init__(self, name: str = "") -> None:
            self.name = name

        def subfolder(self, name: str) -> SaveProtocol:
            return Named(name)

    with Saver(tmp_path, protocol=Named()) as saver, saver.subfolder("dense", dense_only=True) as dense:
        assert isinstance(dense.protocol, Named)
        assert dense.protocol.name == "dense"
        dense.save(state_at(1))
    assert dense.dense_only
    assert manifests(tmp_path / "dense") == {"model.ckpt-1.manifest"}
