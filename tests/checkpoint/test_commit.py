"""From the moment its manifest has its name a checkpoint is there to stay, whatever fails behind it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from checkpoint.runs import Run, contents
from monolith.checkpoint import Saver
from monolith.checkpoint.inspection import reshard
from monolith.errors import OpError
from monolith.files import named_errors
from monolith.files.storage import LocalStorage


class FailingBehindTheRename(LocalStorage):
    """A folder whose sync fails once when the manifest of a new checkpoint has just got its name."""

    def __init__(self, folder: Path, prefix: str, failure: BaseException) -> None:
        super().__init__(folder)
        self._manifest = folder / f"{prefix}.manifest"
        self._before = self._number()
        self._failure: BaseException | None = failure

    def sync(self) -> None:
        failure = self._failure
        if failure is not None and self._number() != self._before:
            self._failure = None
            with named_errors(self.path, "synced"):
                raise failure
        super().sync()

    def _number(self) -> int | None:
        return self._manifest.stat().st_ino if self._manifest.exists() else None


@pytest.fixture
def run() -> Run:
    run = Run()
    run.steps(3)
    return run


def restored_contents(folder: Path) -> object:
    again = Run(seed=9)
    assert Saver(folder).restore(again.state) is not None
    return contents(again)


FAILURES = [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()]


@pytest.mark.parametrize("failure", FAILURES, ids=["an error", "an interrupt"])
@pytest.mark.parametrize("same_step", [False, True], ids=["of the next step", "of the same step"])
def test_a_sync_that_fails_after_the_commit_rolls_nothing_back(
    tmp_path: Path,
    run: Run,
    failure: BaseException,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    same_step: bool,
) -> None:
    with Saver(tmp_path, max_to_keep=2) as saver:
        saver.save(run.state)
        run.step()
        run.state.global_step -= same_step
        prefix = f"model.ckpt-{run.state.global_step}"
        with monkeypatch.context() as patched:
            patched.setattr(saver, "_folder", FailingBehindTheRename(tmp_path, prefix, failure))
            with pytest.raises((OpError, KeyboardInterrupt)):
                saver.save(run.state)
        assert f"checkpoint '{prefix}.manifest' is in place and stays" in caplog.text
        assert restored_contents(tmp_path) == contents(run)

        for _ in range(2):  # the failed one counts for retention, and what it left goes
            run.step()
            saver.save(run.state)
    assert len(list(tmp_path.glob("*.manifest"))) == 2
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    assert len(list(tmp_path.glob("*.assets"))) == 2
    assert not [*tmp_path.glob("*.saving"), *tmp_path.glob("*.tmp")]


def test_what_a_replaced_checkpoint_left_goes_when_the_next_run_begins(tmp_path: Path, run: Run) -> None:
    """A save was killed right behind its commit: the mark is there, and the files of the one that it replaced."""
    with Saver(tmp_path) as saver:
        saver.save(run.state)
        kept = {path.name: path.read_bytes() for path in tmp_path.glob("model.ckpt-3.*") if path.is_file()}
        saver.save(run.state)
    listed = {path.name for path in tmp_path.glob("model.ckpt-3.*")}
    for name, data in kept.items():
        if not (tmp_path / name).exists():
            (tmp_path / name).write_bytes(data)
    (tmp_path / "model.ckpt-3.saving").touch()
    assert {path.name for path in tmp_path.glob("model.ckpt-3.*")} > listed
    with Saver(tmp_path) as saver:
        saver.begin()
    assert {path.name for path in tmp_path.glob("model.ckpt-3.*")} == listed
    assert restored_contents(tmp_path) == contents(run)


def test_files_next_to_an_unreadable_manifest_are_kept(
    tmp_path: Path, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    with Saver(tmp_path) as saver:
        saver.save(run.state)
    (tmp_path / "model.ckpt-3.saving").touch()
    (tmp_path / "model.ckpt-3.manifest").write_text("{}")
    before = sorted(path.name for path in tmp_path.glob("model.ckpt-3.*"))
    with Saver(tmp_path) as saver:
        saver.begin()
    assert sorted(path.name for path in tmp_path.glob("model.ckpt-3.*")) == before
    assert "the leftovers of a save of 'model.ckpt-3' cannot be identified, and are kept" in caplog.text


def test_a_temporary_file_of_a_dead_writer_goes_and_that_of_a_living_one_stays(tmp_path: Path, run: Run) -> None:
    (tmp_path / "checkpoint.0123abcd.tmp").write_text("half of")
    (tmp_path / "theirs.tmp").touch()
    seen: list[list[str]] = []

    class Slow(LocalStorage):
        def write(self, name: str, pieces: object, *, past_cache: bool = False) -> None:
            with Saver(tmp_path) as saver:  # another process, as far as locks go
                saver.begin()
            seen.append([path.name for path in tmp_path.glob("*.tmp")])
            super().write(name, pieces, past_cache=past_cache)  # type: ignore[arg-type]

    Slow(tmp_path).replace("mine", b"all of it")
    ((first, second),) = map(sorted, seen)
    assert first.startswith("mine.")
    assert second == "theirs.tmp"
    assert (tmp_path / "mine").read_bytes() == b"all of it"
    assert [path.name for path in tmp_path.glob("*.tmp")] == ["theirs.tmp"]


def test_every_file_of_a_copy_is_synced_before_its_manifest(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Saver(tmp_path / "model") as saver:
        path = saver.save(run.state, background=False).path
    synced: list[str] = []
    fsync = os.fsync

    def recording(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recording)
    reshard(path, tmp_path / "copy", num_files=3)
    (committed,) = (number for number, name in enumerate(synced) if name.startswith("model.ckpt-3.manifest"))
    files = [each.name for each in (tmp_path / "copy").rglob("*") if each.is_file() and each.suffix != ".manifest"]
    written_by_us = {name for name in files if name not in {"checkpoint", "manifest.json"}}
    assert len(written_by_us) == 5, "three bucket files, the tensors and the description"
    assert written_by_us <= set(synced[:committed])


def test_a_write_that_fails_leaves_no_temporary_file(tmp_path: Path) -> None:
    class Full(LocalStorage):
        def write(self, name: str, pieces: object, *, past_cache: bool = False) -> None:
            with named_errors(self.place(name), "written"):
                raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OpError, match="make room"):
        Full(tmp_path).replace("mine", b"all of it")
    assert list(tmp_path.iterdir()) == []
