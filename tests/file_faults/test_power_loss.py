"""Power that fails anywhere in a save, and takes with it what was not synced, leaves a whole checkpoint."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from file_faults.disk import Disk, fates, write_tree
from file_faults.operations import Change, preload, read_record
from file_faults.scenarios import FIRST_STEPS, SCENARIOS
from file_faults.small_run import SmallRun, contents
from file_faults.users import USERS, prepare_all
from forked_starts import ForkingProcess
from monolith.checkpoint import Saver
from monolith.errors import OpError

PROCESS = Path(__file__).with_name("process.py")
USER_PROCESS = Path(__file__).with_name("user_process.py")


def record(library: Path, scenario: str, folder: Path) -> list[Change]:
    """What a save changes in a folder that has what the scenario begins with; the folder is as it was before."""
    copy, written = folder.with_name("copy"), folder.with_name("record")
    subprocess.run(
        [sys.executable, str(PROCESS), str(library), "record", scenario, str(folder), str(copy), str(written)],
        env=preload(library),
        check=True,
    )
    shutil.rmtree(folder)
    copy.rename(folder)
    return read_record(written)


def expected(scenario: str) -> tuple[Any, Any]:
    """What the directory gives back before the save and after it."""
    run = SmallRun()
    run.steps(FIRST_STEPS)
    before = contents(run) if SCENARIOS[scenario].has_checkpoint else None
    run.step()
    run.state.global_step -= SCENARIOS[scenario].same_step
    return before, contents(run)


def restored(folder: Path, reader: SmallRun) -> Any:
    """What the directory gives back; None if it has no checkpoint, a text if it cannot be restored."""
    try:
        return None if Saver(folder).restore(reader.state) is None else contents(reader)
    except OpError as failure:
        return repr(failure)


@pytest.mark.slow
@pytest.mark.usefixtures("watched_starts")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_survives_a_power_loss_restores(library: Path, quick_folder: Path, scenario: str) -> None:
    folder = quick_folder / "model"
    changes = record(library, scenario, folder)
    assert sum(change.kind == "s" for change in changes) > 10
    before, after = expected(scenario)
    disk, reader, tried = Disk(folder), SmallRun(), {}
    for number, change in enumerate(changes):
        disk.apply(change)
        for choose in fates(number):
            tree = disk.after_power_loss(choose)
            key = hash(tuple(tree.items()))
            if key not in tried:
                write_tree(tree, quick_folder / "lost")
                tried[key] = restored(quick_folder / "lost", reader)
                shutil.rmtree(quick_folder / "lost")
            assert tried[key] in (before, after), (number, change.kind, change.path, sorted(tree))
    everything_lost = disk.after_power_loss(lambda: False)
    assert tried[hash(tuple(everything_lost.items()))] == after, "a save that returned is safe"
    assert len(tried) > 50


@pytest.fixture(scope="module")
def recorded_writes(library: Path, watching: ForkingProcess, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared folder for each user of storage, and a record of what its write changes there."""
    place, copy = tmp_path_factory.mktemp("users"), tmp_path_factory.mktemp("copy")
    prepare_all(place)
    shutil.copytree(place, copy, dirs_exist_ok=True)
    with watching.forked_starts():
        subprocess.run(
            [sys.executable, str(USER_PROCESS), str(library), "record", str(place)], env=preload(library), check=True
        )
    for name in USERS:
        shutil.rmtree(place / name)
        (copy / name).rename(place / name)
    return place


@pytest.mark.slow
@pytest.mark.parametrize("name", USERS)
def test_what_a_user_of_storage_wrote_survives_a_power_loss(
    recorded_writes: Path, quick_folder: Path, name: str
) -> None:
    user, folder, lost = USERS[name], recorded_writes / name, quick_folder / "lost"

    def state(tree: dict[str, bytes | None]) -> Any:
        write_tree(tree, lost)
        try:
            return user.read(lost)
        except (OpError, OSError, AssertionError, ValueError, IndexError) as failure:
            return repr(failure)
        finally:
            shutil.rmtree(lost)

    disk, tried = Disk(folder), {}
    before = state(disk.after_power_loss(lambda: True))
    changes = read_record(folder.with_suffix(".record"))
    whole = Disk(folder)
    for change in changes:
        whole.apply(change)
    after = state(whole.after_power_loss(lambda: True))
    for number, change in enumerate(changes):
        disk.apply(change)
        for choose in fates(number):
            tree = disk.after_power_loss(choose)
            key = hash(tuple(tree.items()))
            if key not in tried:
                tried[key] = state(tree)
            assert user.is_between(before, tried[key], after), (number, change.kind, change.path, tried[key])
    everything_lost = disk.after_power_loss(lambda: False)
    assert tried[hash(tuple(everything_lost.items()))] == after, "a write that returned is safe"
    assert len(tried) > 2


class TestTheDisk:
    """The disk itself loses what it may lose, so that the test above can fail."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "disk").mkdir()
        (tmp_path / "disk" / "old").write_bytes(b"old")
        return tmp_path / "disk"

    @staticmethod
    def lost(folder: Path, *changes: tuple[str, str, int, bytes]) -> dict[str, bytes | None]:
        disk = Disk(folder)
        for kind, name, offset, data in changes:
            disk.apply(Change(kind, f"{folder}/{name}".rstrip("/"), offset, data))
        return disk.after_power_loss(lambda: False)

    def test_unsynced_bytes_are_lost_though_the_name_persists(self, folder: Path) -> None:
        made = [("c", "new", 0, b""), ("w", "new", 0, b"bytes"), ("s", "", 0, b"")]
        assert self.lost(folder, *made) == {"new": b"", "old": b"old"}
        assert self.lost(folder, *made, ("s", "new", 0, b"")) == {"new": b"bytes", "old": b"old"}

    def test_a_name_is_lost_though_the_bytes_were_synced(self, folder: Path) -> None:
        made = [("c", "new", 0, b""), ("w", "new", 0, b"bytes"), ("s", "new", 0, b"")]
        assert self.lost(folder, *made) == {"old": b"old"}

    def test_an_unsynced_rename_and_an_unsynced_removal_are_reverted(self, folder: Path) -> None:
        assert self.lost(folder, ("u", "old", 0, b"")) == {"old": b"old"}
        renamed = ("r", "old", 0, f"{folder}/renamed".encode())
        assert self.lost(folder, renamed) == {"old": b"old"}
        assert self.lost(folder, renamed, ("s", "", 0, b"")) == {"renamed": b"old"}

    def test_what_is_cut_and_written_again_is_as_it_was(self, folder: Path) -> None:
        assert self.lost(folder, ("t", "old", 0, b""), ("w", "old", 0, b"ne")) == {"old": b"old"}

    def test_a_link_is_lost_without_its_folder_synced(self, folder: Path) -> None:
        linked = ("l", "old", 0, f"{folder}/second".encode())
        assert self.lost(folder, linked) == {"old": b"old"}
        assert self.lost(folder, linked, ("s", "", 0, b"")) == {"old": b"old", "second": b"old"}

    def test_a_folder_persists_once_its_parent_was_synced(self, folder: Path) -> None:
        made = [("m", "sub", 0, b""), ("c", "sub/file", 0, b""), ("s", "sub", 0, b"")]
        assert self.lost(folder, *made) == {"old": b"old"}
        assert self.lost(folder, *made, ("s", "", 0, b"")) == {"old": b"old", "sub": None, "sub/file": b""}
