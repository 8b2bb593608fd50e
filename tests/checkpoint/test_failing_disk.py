"""A disk that cannot give back the newest checkpoint costs the steps behind the one before it, and not the run."""

from __future__ import annotations

import errno
import re
from pathlib import Path
from typing import Any

import pytest

from checkpoint.runs import Run, contents
from monolith import _core
from monolith.checkpoint import Saver
from monolith.errors import UnavailableError
from monolith.files import named_errors, read_regular_file
from monolith.files.storage import RemoteStorage


@pytest.fixture
def run() -> Run:
    run = Run()
    run.steps(3)
    return run


class BrokenError(OSError):
    """What a failing disk says."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, "Input/output error")


def break_file(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """From now on this file cannot be read: the disk fails there."""
    exists, read_summed = Path.exists, _core.read_summed

    def failing(path: str, *, most_bytes: int) -> bytes:
        if Path(path).name == name:
            raise BrokenError
        return read_regular_file(path, most_bytes=most_bytes)

    def failing_stat(path: Path) -> bool:
        if path.name == name:
            raise BrokenError
        return exists(path)

    def failing_sum(path: str, *arguments: Any, **options: Any) -> list[int]:
        if Path(path).name == name:
            raise UnavailableError(f"file '{path}': reading failed: Input/output error")
        return read_summed(path, *arguments, **options)

    monkeypatch.setattr("monolith.files.storage.read_regular_file", failing)
    monkeypatch.setattr(Path, "exists", failing_stat)
    monkeypatch.setattr(_core, "read_summed", failing_sum)


@pytest.mark.parametrize("name", ["model.ckpt-4.manifest", "model.ckpt-4.safetensors", "checkpoint"])
def test_a_disk_that_fails_under_the_newest_checkpoint_gives_way_to_the_one_before_it(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    with Saver(tmp_path) as saver:
        saver.save(run.state)
        before = contents(run)
        run.step()
        saver.save(run.state)
    again = Run(seed=9)
    break_file(monkeypatch, name)
    restored = Saver(tmp_path).restore(again.state)
    assert restored is not None
    if name == "checkpoint":  # the manifests say the same
        assert (restored.step, contents(again)) == (4, contents(run))
        return
    assert (restored.step, contents(again)) == (3, before)
    assert re.search(r"model\.ckpt-4' cannot be used, trying the one before it: .*Input/output error", caplog.text)
    assert re.search(r"model\.ckpt-3' was restored instead of '.*/model\.ckpt-4'", caplog.text)
    with pytest.raises(UnavailableError, match="Input/output error"):
        Saver(tmp_path).restore(again.state, "model.ckpt-4")


def test_if_no_checkpoint_is_readable_the_error_reports_it(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Saver(tmp_path) as saver:
        saver.save(run.state)
    break_file(monkeypatch, "model.ckpt-3.safetensors")
    with pytest.raises(UnavailableError, match=r"model\.ckpt-3\.safetensors.*Input/output error"):
        Saver(tmp_path).restore(Run(seed=9).state)


def test_an_outage_of_a_remote_store_is_no_reason_to_lose_work(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with Saver("memory://outage/model") as saver:
        saver.save(run.state)
        run.step()
        saver.save(run.state)
    read = RemoteStorage.read_summed

    def failing(self: RemoteStorage, name: str, target: Any) -> list[int]:
        if name == "model.ckpt-4.safetensors":
            with named_errors(self.place(name), "read"):
                raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        return read(self, name, target)

    monkeypatch.setattr(RemoteStorage, "read_summed", failing)
    with pytest.raises(UnavailableError, match=r"model\.ckpt-4\.safetensors.*Connection reset"):
        Saver("memory://outage/model").restore(Run(seed=9).state)
