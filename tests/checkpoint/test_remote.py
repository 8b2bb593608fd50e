"""Model directories on other file systems."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from checkpoint.runs import Run, contents
from monolith.checkpoint import ModelDirLock, SaveHelper, Saver, copy_checkpoint_state, get_checkpoint_state
from monolith.errors import DataLossError, FailedPreconditionError, UnavailableError


@pytest.fixture
def memory() -> Iterator[Any]:
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]
    yield filesystem
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]


@pytest.mark.parametrize("background", [False, True])
def test_a_run_resumes_from_another_file_system(memory: Any, *, background: bool) -> None:
    run = Run()
    with Saver("memory://models/a", max_to_keep=2, background=background) as saver:
        for _ in range(3):
            run.step()
            saver.save(run.state)
    again = Run(seed=4)
    restored = Saver("memory://models/a").restore(again.state)
    assert restored is not None
    assert restored.path == "memory://models/a/model.ckpt-3"
    assert contents(again) == contents(run)
    assert SaveHelper("memory://models/a").get_existing_checkpoint_steps() == {2, 3}
    assert not [name for name in memory.find("/models/a") if "ckpt-1" in name]


def test_a_file_url_is_a_local_directory(tmp_path: Path) -> None:
    run = Run()
    with Saver(f"file://{tmp_path}/model") as saver:
        saver.save(run.state)
        with pytest.raises(UnavailableError, match="in use by process"):
            ModelDirLock(f"file://{tmp_path}/model")
    assert Saver(tmp_path / "model").restore(run.state) is not None


def test_a_replaced_run_is_kept_from_committing(memory: Any) -> None:
    run = Run()
    old, new = Saver("memory://models/b"), Saver("memory://models/b")
    old.save(run.state)
    run.step()
    new.begin()  # no lock there: claiming the next generation is enough
    before = sorted(memory.find("/models/b"))
    with pytest.raises(
        FailedPreconditionError, match=r"has generation 1 and was replaced by process \d+ .* 2; nothing"
    ):
        old.save(run.state)
    assert sorted(memory.find("/models/b")) == before
    assert new.save(run.state, background=False).generation == 2
    old.close()
    new.close()


def test_damage_is_noticed_there_too(memory: Any) -> None:
    run = Run()
    with Saver("memory://models/c") as saver:
        saver.save(run.state)
    name = next(name for name in memory.find("/models/c") if name.endswith(".safetensors"))
    memory.pipe_file(name, memory.cat_file(name)[:-1])
    with pytest.raises(
        DataLossError, match=r"memory://models/c/model\.ckpt-0\.safetensors': \d+ bytes, \d+ were written"
    ):
        Saver("memory://models/c").restore(run.state)


def test_a_failed_upload_leaves_nothing(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    with Saver("memory://models/d") as saver:
        saver.save(run.state)
        before = sorted(memory.find("/models/d"))
        run.step()
        put = type(memory).pipe_file

        def fail(self: Any, path: str, value: bytes, **options: Any) -> None:
            if path.endswith(".manifest") and "assets" not in path:
                raise OSError("the network, says the test")
            put(self, path, value, **options)

        monkeypatch.setattr(type(memory), "pipe_file", fail)
        with pytest.raises(UnavailableError, match=r"model\.ckpt-1\.manifest': cannot be written: the network"):
            saver.save(run.state)
        monkeypatch.undo()
        assert sorted(memory.find("/models/d")) == before
        saver.save(run.state)


def test_a_run_starts_from_a_checkpoint_elsewhere(memory: Any, tmp_path: Path) -> None:
    run = Run()
    run.steps(2)
    with Saver("memory://models/e") as saver:
        saver.save(run.state)
    assert copy_checkpoint_state("memory://models/e", tmp_path)
    state = get_checkpoint_state(tmp_path)
    assert state is not None
    assert state.model_checkpoint_path == "memory://models/e/model.ckpt-2"
    again = Run(seed=3)
    with Saver(tmp_path, max_to_keep=1) as saver:
        saver.restore(again.state)
        assert contents(again) == contents(run)
        for _ in range(2):
            again.step()
            saver.save(again.state)
    assert Saver("memory://models/e").restore(run.state) is not None
